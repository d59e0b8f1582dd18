/* Events of a Chrome trace: one pass over the JSON text of a list of objects.
 *
 * Decodes what profilers write; whatever it is not sure about is GPUSIGHT_BAD_INPUT, and msgspec decodes that text, or
 * refuses it. So everything that it steps over is checked to be JSON.
 */
#include "gpusight_core.h"

#include <math.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { MAX_DEPTH = 64, MAX_TYPES = 256, MAX_PROBES = 64, MAX_KEYS = 64, KEY_SLOTS = 256 };
static const int64_t NO_TEXT = -1, NO_TIME = INT64_MIN;
static const int64_t LATEST_US = (int64_t)((1ull << 61) / 1000); /* beyond any clock */

/* What stopped the scan of a value: it is no JSON, or unusual; or the text ends before it does. */
typedef enum { FINE, ODD, CUT } Status;

typedef struct {
    const uint8_t *text, *end;
    int64_t *hashes; /* of texts: slots with their number plus one */
    int64_t slots, most_texts, texts, *text_at, *text_length;
    int64_t types, *type_phase, *type_category;
    int64_t keys, *key_at, *key_length; /* of arguments */
    uint8_t key_slots[KEY_SLOTS];       /* their number plus one */
} Scan;

static inline const uint8_t *after_space(const uint8_t *at, const uint8_t *end)
{
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t'))
        at++;
    return at;
}

static int is_hex(uint8_t c) { return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'f'); }

/* Go from behind the opening quote of a text to its closing one. */
static inline Status find_quote(const uint8_t **at, const uint8_t *end, int *escaped)
{
    const uint8_t *p = *at;
    for (;;) {
#if defined(__SSE2__)
        const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\'), control = _mm_set1_epi8(0x1f);
        while (end - p >= 16) {
            __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)p);
            __m128i found = _mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, slash));
            found = _mm_or_si128(found, _mm_cmpeq_epi8(_mm_max_epu8(bytes, control), control));
            int mask = _mm_movemask_epi8(found);
            if (mask) {
                p += __builtin_ctz((unsigned)mask);
                break;
            }
            p += 16;
        }
#endif
        while (p < end && *p != '"' && *p != '\\' && *p >= 0x20)
            p++;
        if (p >= end)
            return CUT;
        if (*p == '"') {
            *at = p;
            return FINE;
        }
        if (*p != '\\')
            return ODD;
        *escaped = 1;
        if (end - p < 6) {
            if (end - p < 2)
                return CUT;
            if (p[1] == 'u')
                return CUT;
        }
        if (p[1] == 'u') {
            if (!is_hex(p[2]) || !is_hex(p[3]) || !is_hex(p[4]) || !is_hex(p[5]))
                return ODD;
            if ((p[2] | 32) == 'd' && p[3] >= '8')
                return ODD; /* half of a character */
            p += 6;
        } else if (p[1] == '"' || p[1] == '\\' || p[1] == '/' || p[1] == 'b' || p[1] == 'f' || p[1] == 'n' ||
                   p[1] == 'r' || p[1] == 't')
            p += 2;
        else
            return ODD;
    }
}

static inline int is_digit(uint8_t c) { return c >= '0' && c <= '9'; }

/* Step over a number, which ends before something else. */
static Status skip_number(const uint8_t **at, const uint8_t *end)
{
    const uint8_t *p = *at;
    if (p < end && *p == '-')
        p++;
    const uint8_t *digits = p;
    while (p < end && is_digit(*p))
        p++;
    if (p < end && (p == digits || (*digits == '0' && p - digits > 1)))
        return ODD;
    if (p < end && *p == '.') {
        const uint8_t *part = ++p;
        while (p < end && is_digit(*p))
            p++;
        if (p < end && p == part)
            return ODD;
    }
    if (p < end && (*p | 32) == 'e') {
        p++;
        if (p < end && (*p == '+' || *p == '-'))
            p++;
        const uint8_t *power = p;
        while (p < end && is_digit(*p))
            p++;
        if (p < end && p == power)
            return ODD;
        if (p - power > 2)
            return ODD; /* perhaps beyond what a double holds */
    }
    if (p >= end)
        return CUT;
    if (p - *at > 300)
        return ODD;
    *at = p;
    return FINE;
}

static Status skip_word(const uint8_t **at, const uint8_t *end, const char *word, int length)
{
    if (end - *at < length)
        return CUT;
    if (memcmp(*at, word, (size_t)length) != 0)
        return ODD;
    *at += length;
    return FINE;
}

/* Step over a value. */
static Status skip_value(const uint8_t **at, const uint8_t *end, int depth)
{
    int escaped;
    const uint8_t *p = *at;
    if (p >= end)
        return CUT;
    switch (*p) {
    case '"': {
        p++;
        Status status = find_quote(&p, end, &escaped);
        *at = p + 1;
        return status;
    }
    case 't':
        return skip_word(at, end, "true", 4);
    case 'f':
        return skip_word(at, end, "false", 5);
    case 'n':
        return skip_word(at, end, "null", 4);
    case '{':
    case '[': {
        if (depth >= MAX_DEPTH)
            return ODD;
        uint8_t closing = *p == '{' ? '}' : ']';
        p = after_space(p + 1, end);
        if (p < end && *p == closing) {
            *at = p + 1;
            return FINE;
        }
        for (;;) {
            if (closing == '}') {
                if (p >= end)
                    return CUT;
                if (*p++ != '"')
                    return ODD;
                Status status = find_quote(&p, end, &escaped);
                if (status)
                    return status;
                p = after_space(p + 1, end);
                if (p >= end)
                    return CUT;
                if (*p++ != ':')
                    return ODD;
                p = after_space(p, end);
            }
            Status status = skip_value(&p, end, depth + 1);
            if (status)
                return status;
            p = after_space(p, end);
            if (p >= end)
                return CUT;
            uint8_t next = *p++;
            if (next == closing) {
                *at = p;
                return FINE;
            }
            if (next != ',')
                return ODD;
            p = after_space(p, end);
        }
    }
    default:
        return skip_number(at, end);
    }
}

/* Number a text by its first occurrence; -1 if there is no room for another, -2 if too many have its hash. */
static int64_t number_of_text(Scan *s, const uint8_t *at, int64_t length)
{
    uint64_t hash = 14695981039346656037ull ^ (uint64_t)length;
    int64_t i = 0;
    for (; i + 8 <= length; i += 8) {
        uint64_t word;
        memcpy(&word, at + i, 8);
        hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
        hash ^= hash >> 32;
    }
    for (; i < length; i++)
        hash = (hash ^ at[i]) * 1099511628211ull;
    hash ^= hash >> 29;
    for (int probe = 0; probe < MAX_PROBES; probe++) {
        int64_t *slot = &s->hashes[(hash + (uint64_t)probe) & (uint64_t)(s->slots - 1)];
        if (*slot == 0) {
            if (s->texts >= s->most_texts)
                return -1;
            s->text_at[s->texts] = at - s->text;
            s->text_length[s->texts] = length;
            *slot = ++s->texts;
            return *slot - 1;
        }
        int64_t known = *slot - 1;
        if (s->text_length[known] == length && memcmp(s->text + s->text_at[known], at, (size_t)length) == 0)
            return known;
    }
    return -2;
}

/* Number a key of arguments by its first occurrence; -1 if there are too many. */
static int64_t number_of_key(Scan *s, const uint8_t *at, int64_t length)
{
    /* Keys of one length seldom begin and end alike. */
    uint32_t hash = length ? (uint32_t)length * 31 + at[0] * 7u + at[length - 1] * 13u + at[length / 2] * 3u : 0;
    for (uint32_t probe = 0; probe < KEY_SLOTS; probe++) {
        uint8_t *slot = &s->key_slots[(hash + probe) % KEY_SLOTS];
        if (*slot == 0) {
            if (s->keys >= MAX_KEYS)
                return -1;
            s->key_at[s->keys] = at - s->text;
            s->key_length[s->keys] = length;
            *slot = (uint8_t)++s->keys;
            return *slot - 1;
        }
        int64_t known = *slot - 1;
        if (s->key_length[known] == length && memcmp(s->text + s->key_at[known], at, (size_t)length) == 0)
            return known;
    }
    return -1;
}

/* Step over `"key":` and the spaces after it; `at` is where the next key begins. */
static Status read_key(const uint8_t **at, const uint8_t *end, const uint8_t **key, int64_t *length, int *escaped)
{
    const uint8_t *p = *at;
    if (p >= end)
        return CUT;
    if (*p++ != '"')
        return ODD;
    *key = p;
    Status status = find_quote(&p, end, escaped);
    if (status)
        return status;
    *length = p - *key;
    p = after_space(p + 1, end);
    if (p >= end)
        return CUT;
    if (*p++ != ':')
        return ODD;
    *at = after_space(p, end);
    return FINE;
}

/* Step over what follows a value of an object: a comma, or the brace that closes it. */
static Status after_value(const uint8_t **at, const uint8_t *end, int *closed)
{
    const uint8_t *p = after_space(*at, end);
    if (p >= end)
        return CUT;
    if (*p != '}' && *p != ',')
        return ODD;
    *closed = *p == '}';
    *at = *closed ? p + 1 : after_space(p + 1, end);
    return FINE;
}

/* Step over arguments; a bit for each of their keys. */
static Status read_arguments(Scan *s, const uint8_t **at, int64_t *keys)
{
    const uint8_t *p = *at, *key;
    *keys = 0;
    if (p >= s->end || *p != '{')
        return skip_value(at, s->end, 0);
    p = after_space(p + 1, s->end);
    int closed = p < s->end && *p == '}';
    p += closed;
    while (!closed) {
        int64_t length;
        int escaped = 0;
        Status status = read_key(&p, s->end, &key, &length, &escaped);
        if (status)
            return status;
        int64_t known = escaped ? -1 : number_of_key(s, key, length);
        if (known < 0)
            return ODD;
        *keys |= (int64_t)(1ull << known);
        if ((status = skip_value(&p, s->end, 1)) || (status = after_value(&p, s->end, &closed)))
            return status;
    }
    *at = p;
    return FINE;
}

/* Read a time in microseconds: as a double, or as nanoseconds where doubles would round. */
static Status read_time(const uint8_t **at, const uint8_t *end, int exact, double *us, int64_t *ns)
{
    const uint8_t *p = *at, *begin = p;
    Status status = skip_number(&p, end);
    if (status)
        return status;
    int negative = *begin == '-';
    uint64_t whole = 0, parts = 0;
    int digits = 0, decimals = 0, fourth = 0;
    const uint8_t *q = begin + negative;
    for (; is_digit(*q); q++, digits++) {
        if (digits >= 16)
            return ODD;
        whole = whole * 10 + (uint64_t)(*q - '0');
    }
    if (*q == '.')
        for (q++; q < p && is_digit(*q); q++, decimals++) {
            if (decimals < 4)
                fourth = fourth * 10 + (*q - '0');
            if (decimals < 9)
                parts = parts * 10 + (uint64_t)(*q - '0');
        }
    if (q != p)
        return ODD; /* an exponent */
    if (exact) {
        for (int i = decimals; i < 4; i++)
            fourth *= 10;
        if (whole > (uint64_t)LATEST_US)
            return ODD;
        int64_t below = (fourth + 5) / 10;
        *ns = negative ? -(int64_t)whole * 1000 - below : (int64_t)whole * 1000 + below;
    } else {
        static const double POWERS[] = {1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9};
        static const uint64_t SCALES[] = {1,      10,      100,      1000,      10000,
                                          100000, 1000000, 10000000, 100000000, 1000000000};
        static const uint64_t EXACT = 1ull << 53;
        if (decimals > 9 || whole > EXACT / SCALES[decimals] - 1 || (negative && whole == 0))
            return ODD;
        /* Both are exact, so that their quotient is rounded once, as it should be. */
        double value = (double)(whole * SCALES[decimals] + parts) / POWERS[decimals];
        *us = negative ? -value : value;
    }
    *at = p;
    return FINE;
}

/* What is kept of an event; texts by their numbers. */
typedef struct {
    int64_t phase, category, name, pid, pid_text, tid, tid_text, start_ns, duration_ns, args_at, args_length, keys;
    double start_us, duration_us;
    int full; /* there was no room for another text */
} Event;

static Status read_text(Scan *s, const uint8_t **at, int nullable, int64_t *number, Event *e)
{
    const uint8_t *p = *at;
    if (p >= s->end)
        return CUT;
    if (*p == 'n' && nullable) {
        *number = NO_TEXT;
        return skip_word(at, s->end, "null", 4);
    }
    if (*p++ != '"')
        return ODD;
    const uint8_t *begin = p;
    int escaped = 0;
    Status status = find_quote(&p, s->end, &escaped);
    if (status)
        return status;
    int64_t known = number_of_text(s, begin, p - begin);
    if (known < -1)
        return ODD;
    e->full |= known < 0;
    *number = known;
    *at = p + 1;
    return FINE;
}

/* Read the label of a process or thread: a whole number, a text, or null. */
static Status read_label(Scan *s, const uint8_t **at, int64_t *value, int64_t *text, Event *e)
{
    const uint8_t *p = *at;
    if (p >= s->end)
        return CUT;
    *value = 0;
    *text = NO_TEXT;
    if (*p == 'n')
        return ODD;
    if (*p == '"')
        return read_text(s, at, 0, text, e);
    const uint8_t *begin = p;
    Status status = skip_number(&p, s->end);
    if (status)
        return status;
    int negative = *begin == '-';
    const uint8_t *q = begin + negative;
    if (p - q > 18)
        return ODD;
    int64_t number = 0;
    for (; q < p; q++) {
        if (!is_digit(*q))
            return ODD;
        number = number * 10 + (*q - '0');
    }
    *value = negative ? -number : number;
    *at = p;
    return FINE;
}

static inline int is_key(const uint8_t *key, int64_t length, const char *name, int64_t name_length)
{
    return length == name_length && memcmp(key, name, (size_t)name_length) == 0;
}

/* Read one event, of which `*at` is the opening brace. */
static Status read_event(Scan *s, const uint8_t **at, int exact, Event *e)
{
    const uint8_t *p = after_space(*at + 1, s->end), *end = s->end, *key;
    if (p < end && *p == '}') {
        *at = p + 1;
        return FINE;
    }
    for (int closed = 0; !closed;) {
        int64_t length;
        int escaped = 0;
        Status status = read_key(&p, end, &key, &length, &escaped);
        if (status)
            return status;
        if (escaped)
            return ODD;
        if (is_key(key, length, "ph", 2))
            status = read_text(s, &p, 0, &e->phase, e);
        else if (is_key(key, length, "cat", 3))
            status = read_text(s, &p, 1, &e->category, e);
        else if (is_key(key, length, "name", 4))
            status = read_text(s, &p, 1, &e->name, e);
        else if (is_key(key, length, "pid", 3))
            status = read_label(s, &p, &e->pid, &e->pid_text, e);
        else if (is_key(key, length, "tid", 3))
            status = read_label(s, &p, &e->tid, &e->tid_text, e);
        else if (is_key(key, length, "ts", 2))
            status = read_time(&p, end, exact, &e->start_us, &e->start_ns);
        else if (is_key(key, length, "dur", 3))
            status = read_time(&p, end, exact, &e->duration_us, &e->duration_ns);
        else if (is_key(key, length, "args", 4)) {
            const uint8_t *begin = p;
            status = read_arguments(s, &p, &e->keys);
            e->args_at = begin - s->text;
            e->args_length = p - begin;
        } else
            status = skip_value(&p, end, 0);
        if (status || (status = after_value(&p, end, &closed)))
            return status;
    }
    *at = p;
    return FINE;
}

/* Number the pair of phase and category; -1 if there are too many. */
static int64_t number_of_type(Scan *s, int64_t phase, int64_t category)
{
    for (int64_t i = 0; i < s->types; i++)
        if (s->type_phase[i] == phase && s->type_category[i] == category)
            return i;
    if (s->types >= MAX_TYPES)
        return -1;
    s->type_phase[s->types] = phase;
    s->type_category[s->types] = category;
    return s->types++;
}

/* Decode whole events from the start of a text that begins with one, or with what closes the list.
 *
 * Stops before an event that the text cuts off, where the list ends, or when there is no room. `columns` has a row for
 * each of: type, name, process, its text, thread, its text, start and duration (doubles of microseconds, NaN for none;
 * or nanoseconds, the least number for none), where the event begins, where it ends, where its arguments begin (-1 for
 * none), their length, a bit for each of their keys; each with room for `most` events. Texts are numbered; -1 stands
 * for none. `ends` gets how much of the text was used, the number of texts, that of types, whether the list ended, and
 * the number of keys. Returns the number of events.
 */
GPUSIGHT_API int64_t gpusight_chrome_events(const uint8_t *text, int64_t length, int64_t exact, int64_t most,
                                            int64_t *columns, int64_t most_texts, int64_t *text_at,
                                            int64_t *text_length, int64_t *type_phase, int64_t *type_category,
                                            int64_t *key_at, int64_t *key_length, int64_t *ends)
{
    Scan s = {.text = text,
              .end = text + length,
              .most_texts = most_texts,
              .text_at = text_at,
              .text_length = text_length,
              .type_phase = type_phase,
              .type_category = type_category,
              .key_at = key_at,
              .key_length = key_length,
              .slots = 1};
    while (s.slots < 2 * most_texts)
        s.slots *= 2;
    s.hashes = calloc((size_t)s.slots, sizeof *s.hashes);
    if (s.hashes == NULL)
        return GPUSIGHT_NO_MEMORY;
    const uint8_t *at = after_space(text, s.end), *used = text;
    int64_t count = 0, closed = 0, failed = 0;
    while (count < most && at < s.end) {
        if (*at == ']' && count > 0 && used > text && used[-1] == '}') {
            used = at + 1;
            closed = 1;
            break;
        }
        if (*at != '{') {
            failed = 1;
            break;
        }
        const uint8_t *begin = at;
        Event e = {.phase = NO_TEXT,
                   .category = NO_TEXT,
                   .name = NO_TEXT,
                   .pid = NO_TIME,
                   .pid_text = NO_TEXT,
                   .tid = NO_TIME,
                   .tid_text = NO_TEXT,
                   .start_ns = NO_TIME,
                   .duration_ns = NO_TIME,
                   .args_at = -1,
                   .start_us = NAN,
                   .duration_us = NAN};
        Status status = read_event(&s, &at, (int)exact, &e);
        if (status == CUT || e.full)
            break;
        int64_t type = status == FINE ? number_of_type(&s, e.phase, e.category) : -1;
        if (type < 0) {
            failed = 1;
            break;
        }
        if (!exact) {
            memcpy(&e.start_ns, &e.start_us, 8);
            memcpy(&e.duration_ns, &e.duration_us, 8);
        }
        const int64_t row[] = {type,       e.name,        e.pid,        e.pid_text, e.tid,     e.tid_text,
                               e.start_ns, e.duration_ns, begin - text, at - text,  e.args_at, e.args_length,
                               e.keys};
        for (int c = 0; c < (int)(sizeof row / sizeof *row); c++)
            columns[c * most + count] = row[c];
        count++;
        used = at;
        at = after_space(at, s.end);
        if (at >= s.end)
            break;
        if (*at == ',') {
            const uint8_t *next = after_space(at + 1, s.end);
            if (next < s.end && *next != '{') {
                failed = 1;
                break;
            }
            used = at + 1;
            at = next;
        } else if (*at != ']') {
            failed = 1;
            break;
        }
    }
    free(s.hashes);
    ends[0] = used - text;
    ends[1] = s.texts;
    ends[2] = s.types;
    ends[3] = closed;
    ends[4] = s.keys;
    return failed ? GPUSIGHT_BAD_INPUT : count;
}

/* Copy parts of a text, with a comma between two; `{}` for those that begin at -1. Returns how long the result is.
 *
 * With `room` 0 it is only measured.
 */
GPUSIGHT_API int64_t gpusight_join_parts(const uint8_t *text, int64_t length, int64_t count, const int64_t *at,
                                         const int64_t *lengths, int64_t room, uint8_t *joined)
{
    int64_t size = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t part = at[i] < 0 ? 2 : lengths[i];
        if (part < 0 || (at[i] >= 0 && (at[i] > length || part > length - at[i])) || size > INT64_MAX - part - 1)
            return GPUSIGHT_BAD_INPUT;
        if (room) {
            if (part + (i > 0) > room - size)
                return GPUSIGHT_BAD_INPUT;
            if (i)
                joined[size] = ',';
            if (part)
                memcpy(joined + size + (i > 0), at[i] < 0 ? (const uint8_t *)"{}" : text + at[i], (size_t)part);
        }
        size += part + (i > 0);
    }
    return size;
}

/* Columns of arguments -----------------------------------------------------------------------------------------------*/

typedef enum { WHOLE_NUMBER, REAL_NUMBER, TEXT, JSON_TEXT, ELEMENT } ArgumentType;
typedef enum { ABSENT, VALUE, NOTHING } ArgumentState;

/* Read a whole number of at most 18 digits, as a number or as text. */
static Status read_whole(const uint8_t **at, const uint8_t *end, int64_t *value)
{
    const uint8_t *p = *at;
    int quoted = p < end && *p == '"';
    p += quoted;
    const uint8_t *begin = p;
    p += p < end && *p == '-';
    const uint8_t *digits = p;
    int64_t number = 0;
    for (; p < end && is_digit(*p) && p - digits < 19; p++)
        number = p - digits < 18 ? number * 10 + (*p - '0') : 0;
    if (p >= end || p == digits || p - digits > 18 || (!quoted && *digits == '0' && p - digits > 1))
        return ODD;
    if (quoted ? *p++ != '"' : *p == '.' || (*p | 32) == 'e')
        return ODD;
    *value = *begin == '-' ? -number : number;
    *at = p;
    return FINE;
}

/* Read element `place` of a list of whole numbers; it is absent where the list is shorter. */
static Status read_element(const uint8_t **at, const uint8_t *end, int64_t place, int64_t *value, ArgumentState *state)
{
    const uint8_t *p = *at;
    if (p >= end || *p != '[')
        return ODD;
    p = after_space(p + 1, end);
    *state = NOTHING;
    for (int64_t i = 0; p < end && *p != ']'; i++) {
        int64_t element;
        if (*p == '"' || read_whole(&p, end, &element))
            return ODD;
        if (i == place) {
            *value = element;
            *state = VALUE;
        }
        p = after_space(p, end);
        if (p < end && *p == ',') {
            p = after_space(p + 1, end);
            if (p < end && *p == ']')
                return ODD;
        } else if (p < end && *p != ']')
            return ODD;
    }
    if (p >= end)
        return ODD;
    *at = p + 1;
    return FINE;
}

/* Read one value for one column; `at` is left where the value ends. */
static Status read_argument(Scan *s, const uint8_t **at, ArgumentType type, int64_t place, int64_t *value,
                            ArgumentState *state)
{
    const uint8_t *p = *at, *begin = p;
    *state = VALUE;
    *value = 0;
    if (p < s->end && *p == 'n') {
        *state = NOTHING;
        return skip_word(at, s->end, "null", 4);
    }
    if (type == WHOLE_NUMBER)
        return read_whole(at, s->end, value);
    if (type == ELEMENT)
        return read_element(at, s->end, place, value, state);
    if (type == REAL_NUMBER) {
        double number = 0;
        int64_t unused;
        Status status = read_time(at, s->end, 0, &number, &unused);
        memcpy(value, &number, 8);
        return status;
    }
    Status status = skip_value(&p, s->end, 1);
    if (status)
        return status;
    *at = p;
    if (type == TEXT && *begin == '"') {
        begin++;
        p--;
    } else if (type == TEXT && *begin != 't' && *begin != 'f') {
        int64_t number;
        const uint8_t *q = begin;
        if (read_whole(&q, s->end, &number) || q != p || (number == 0 && p - begin > 1))
            return ODD; /* would be written in another way */
    }
    *value = number_of_text(s, begin, p - begin);
    return *value < 0 ? ODD : FINE;
}

/* What columns to make of arguments: each is of a key. */
typedef struct {
    int64_t keys, columns, rows;
    const uint8_t *key_bytes;
    const int64_t *key_ends, *column_key, *column_type, *column_place;
    int64_t *values;
    uint8_t *states;
} Wanted;

static Status read_row(Scan *s, const uint8_t *at, const Wanted *w, int64_t row)
{
    const uint8_t *p = at, *key;
    if (p >= s->end || *p != '{')
        return ODD;
    p = after_space(p + 1, s->end);
    int closed = p < s->end && *p == '}';
    while (!closed) {
        int64_t length, begin = 0;
        int escaped = 0;
        Status status = read_key(&p, s->end, &key, &length, &escaped);
        if (status || escaped)
            return ODD;
        int64_t k = 0;
        for (; k < w->keys; begin = w->key_ends[k++])
            if (is_key(key, length, (const char *)w->key_bytes + begin, w->key_ends[k] - begin))
                break;
        int is_read = 0;
        const uint8_t *value_at = p;
        for (int64_t c = 0; k < w->keys && c < w->columns; c++) {
            if (w->column_key[c] != k)
                continue;
            ArgumentState state = ABSENT;
            p = value_at;
            if (read_argument(s, &p, (ArgumentType)w->column_type[c], w->column_place[c],
                              &w->values[c * w->rows + row], &state))
                return ODD;
            w->states[c * w->rows + row] = (uint8_t)state;
            is_read = 1;
        }
        if ((!is_read && skip_value(&p, s->end, 1)) || after_value(&p, s->end, &closed))
            return ODD;
    }
    return FINE;
}

/* Make columns of arguments, which begin at places in a text (-1: there are none).
 *
 * Each column has a key, the type of its values and for an element its place. `values` and `states` have `rows` places
 * for each column, of which the first `count` are filled: whole numbers, doubles, or numbers of texts; and whether there
 * is a value, none, or null. Texts are those of all columns, numbered by their first occurrence. Returns how many there
 * are; GPUSIGHT_BAD_INPUT where another decoder has to read these arguments.
 */
GPUSIGHT_API int64_t gpusight_chrome_arguments(const uint8_t *text, int64_t length, int64_t count, const int32_t *at,
                                               int64_t keys, const uint8_t *key_bytes, const int64_t *key_ends,
                                               int64_t columns, const int64_t *column_key, const int64_t *column_type,
                                               const int64_t *column_place, int64_t rows, int64_t *values,
                                               uint8_t *states, int64_t most_texts, int64_t *text_at,
                                               int64_t *text_length)
{
    Scan s = {.text = text,
              .end = text + length,
              .most_texts = most_texts,
              .text_at = text_at,
              .text_length = text_length,
              .slots = 1};
    Wanted w = {.keys = keys,
                .columns = columns,
                .rows = rows,
                .key_bytes = key_bytes,
                .key_ends = key_ends,
                .column_key = column_key,
                .column_type = column_type,
                .column_place = column_place,
                .values = values,
                .states = states};
    while (s.slots < 2 * most_texts)
        s.slots *= 2;
    s.hashes = calloc((size_t)s.slots, sizeof *s.hashes);
    if (s.hashes == NULL)
        return GPUSIGHT_NO_MEMORY;
    Status status = FINE;
    for (int64_t i = 0; i < count && !status; i++) {
        for (int64_t c = 0; c < columns; c++) {
            values[c * rows + i] = 0;
            states[c * rows + i] = ABSENT;
        }
        if (at[i] >= 0)
            status = at[i] < length ? read_row(&s, text + at[i], &w, i) : ODD;
    }
    free(s.hashes);
    return status ? GPUSIGHT_BAD_INPUT : s.texts;
}
