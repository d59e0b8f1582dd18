/* Messages of protobuf (https://protobuf.dev/programming-guides/encoding). */
#include "gpusight_core.h"

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5, LONGEST = 10 };

/* Read a number; returns where the next byte is, -1 if it is cut off or too long. */
static int64_t read_number(const uint8_t *data, int64_t at, int64_t end, uint64_t *value)
{
    uint64_t read = 0;
    for (int i = 0; i < LONGEST; i++) {
        if (at >= end)
            return -1;
        uint8_t byte = data[at++];
        if (i < 9)
            read |= (uint64_t)(byte & 0x7f) << (7 * i);
        else
            read |= (uint64_t)(byte & 1) << 63; /* what does not fit is dropped */
        if (byte < 0x80) {
            *value = read;
            return at;
        }
    }
    return -1;
}

/* List the fields of the message in `data`: number, where it begins and ends; or -1 and the value of a number.
 *
 * Stands in for `fields` of protobuf_wire.py. Returns how many there are; each array has room for `most`.
 */
GPUSIGHT_API int64_t gpusight_message_fields(const uint8_t *data, int64_t length, int64_t most, int64_t *numbers,
                                             int64_t *starts, int64_t *ends)
{
    int64_t count = 0;
    for (int64_t at = 0; at < length; count++) {
        uint64_t tag, value;
        if (count >= most || (at = read_number(data, at, length, &tag)) < 0)
            return GPUSIGHT_BAD_INPUT;
        int64_t start = -1, size = 0;
        switch (tag & 7) {
        case VARINT:
            if ((at = read_number(data, at, length, &value)) < 0)
                return GPUSIGHT_BAD_INPUT;
            break;
        case BYTES:
            if ((at = read_number(data, at, length, &value)) < 0 || value > (uint64_t)(length - at))
                return GPUSIGHT_BAD_INPUT;
            start = at;
            at += (int64_t)value;
            value = (uint64_t)at;
            break;
        case FIXED64:
        case FIXED32:
            size = (tag & 7) == FIXED64 ? 8 : 4;
            if (size > length - at)
                return GPUSIGHT_BAD_INPUT;
            value = 0;
            for (int64_t i = size; i-- > 0;)
                value = value << 8 | data[at + i];
            at += size;
            break;
        default:
            return GPUSIGHT_BAD_INPUT;
        }
        numbers[count] = (int64_t)(tag >> 3);
        starts[count] = start;
        ends[count] = (int64_t)value;
    }
    return count;
}
