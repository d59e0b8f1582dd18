// Programs in CUDA C++: the defects of people who write their own kernels, and a healthy one.
//
//   native NAME found|repaired STEPS WARMUP REPEATS [TIMES.json]
//
// Prints the mean time of a step like the programs in Python do.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime.h>

#define CHECK(call)                                                                     \
    do {                                                                                \
        cudaError_t status = (call);                                                    \
        if (status != cudaSuccess) {                                                    \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status));         \
            std::exit(1);                                                               \
        }                                                                               \
    } while (0)

using Step = std::function<void(int)>;

// --- Heat in a plate: 300 sweeps over a small grid.

__global__ void diffuse(const float* from, float* to, int size) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < 1 || y < 1 || x >= size - 1 || y >= size - 1) return;
    int at = y * size + x;
    to[at] = from[at] + 0.2f * (from[at - 1] + from[at + 1] + from[at - size] + from[at + size]
                                - 4 * from[at]);
}

// Waits after each sweep, to look for errors; repaired: the sweeps are a CUDA graph.
Step synced_stencil(bool repaired) {
    const int size = 512, sweeps = 300;
    float* plates[2];
    for (float*& plate : plates) {
        CHECK(cudaMalloc(&plate, size * size * sizeof(float)));
        CHECK(cudaMemset(plate, 0, size * size * sizeof(float)));
    }
    dim3 block(32, 8), grid(size / 32, size / 8);
    if (!repaired) {
        return [=](int) {
            for (int sweep = 0; sweep < sweeps; ++sweep) {
                diffuse<<<grid, block>>>(plates[sweep % 2], plates[1 - sweep % 2], size);
                CHECK(cudaDeviceSynchronize());
            }
        };
    }
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int sweep = 0; sweep < sweeps; ++sweep)
        diffuse<<<grid, block, 0, stream>>>(plates[sweep % 2], plates[1 - sweep % 2], size);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&ready, graph, 0));
    return [=](int) { CHECK(cudaGraphLaunch(ready, stream)); };
}

// --- A chain of formulas, each with a temporary.

__global__ void blend(const float* a, const float* b, float* out, int count) {
    int stride = gridDim.x * blockDim.x;
    for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += stride)
        out[at] = 0.5f * a[at] + 0.5f * sinf(b[at]);
}

// Allocates and frees each temporary; repaired: from the stream's memory pool.
Step temporaries(bool repaired) {
    const int count = 1 << 22, rounds = 24;
    float *a, *b;
    CHECK(cudaMalloc(&a, count * sizeof(float)));
    CHECK(cudaMalloc(&b, count * sizeof(float)));
    CHECK(cudaMemset(a, 0, count * sizeof(float)));
    CHECK(cudaMemset(b, 0, count * sizeof(float)));
    cudaMemPool_t pool;
    unsigned long long keep = ~0ull;
    CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
    CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
    return [=](int) {
        for (int round = 0; round < rounds; ++round) {
            float* temporary;
            size_t bytes = count * sizeof(float);
            if (repaired) CHECK(cudaMallocAsync(&temporary, bytes, 0));
            else CHECK(cudaMalloc(&temporary, bytes));
            blend<<<1056, 256>>>(a, b, temporary, count);
            blend<<<1056, 256>>>(temporary, b, a, count);
            if (repaired) CHECK(cudaFreeAsync(temporary, 0));
            else CHECK(cudaFree(temporary));
        }
    };
}

// --- Chunks of a signal: copied in, worked on, copied out.

__global__ void refine(float* values, int count, int rounds) {
    int stride = gridDim.x * blockDim.x;
    for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += stride) {
        float value = values[at];
        for (int round = 0; round < rounds; ++round) value = 0.9f * value + 0.1f * __sinf(value);
        values[at] = value;
    }
}

// Everything in one stream; repaired: chunk by chunk in four streams, so that copies overlap.
Step one_stream(bool repaired) {
    const int chunks = 8, count = 1 << 21;
    const size_t bytes = count * sizeof(float);
    std::vector<cudaStream_t> streams(repaired ? 4 : 1);
    for (cudaStream_t& stream : streams)
        CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    float *host, *device;
    CHECK(cudaMallocHost(&host, chunks * bytes));
    std::memset(host, 0, chunks * bytes);
    CHECK(cudaMalloc(&device, chunks * bytes));
    return [=](int) {
        for (int chunk = 0; chunk < chunks; ++chunk) {
            cudaStream_t stream = streams[chunk % streams.size()];
            float *from = host + size_t(chunk) * count, *on = device + size_t(chunk) * count;
            CHECK(cudaMemcpyAsync(on, from, bytes, cudaMemcpyHostToDevice, stream));
            refine<<<1056, 256, 0, stream>>>(on, count, 1200);
            CHECK(cudaMemcpyAsync(from, on, bytes, cudaMemcpyDeviceToHost, stream));
        }
        for (cudaStream_t stream : streams) CHECK(cudaStreamSynchronize(stream));
    };
}

// --- Healthy: bodies that attract each other, tile by tile in shared memory.

__global__ void attract(const float4* bodies, float4* speeds, int count) {
    __shared__ float4 tile[256];
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    float4 own = bodies[at], pull = make_float4(0, 0, 0, 0);
    for (int first = 0; first < count; first += blockDim.x) {
        tile[threadIdx.x] = bodies[first + threadIdx.x];
        __syncthreads();
#pragma unroll 32
        for (int other = 0; other < 256; ++other) {
            float x = tile[other].x - own.x, y = tile[other].y - own.y, z = tile[other].z - own.z;
            float inverse = rsqrtf(x * x + y * y + z * z + 1e-4f);
            float weight = tile[other].w * inverse * inverse * inverse;
            pull.x += x * weight;
            pull.y += y * weight;
            pull.z += z * weight;
        }
        __syncthreads();
    }
    speeds[at].x += 1e-3f * pull.x;
    speeds[at].y += 1e-3f * pull.y;
    speeds[at].z += 1e-3f * pull.z;
}

__global__ void move(float4* bodies, const float4* speeds) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    bodies[at].x += 1e-3f * speeds[at].x;
    bodies[at].y += 1e-3f * speeds[at].y;
    bodies[at].z += 1e-3f * speeds[at].z;
}

Step nbody(bool) {
    const int count = 132 * 8 * 256;
    std::vector<float4> start(count);
    for (int at = 0; at < count; ++at)
        start[at] = make_float4(at % 101, at * 7 % 103, at * 13 % 107, 1.0f);
    float4 *bodies, *speeds;
    CHECK(cudaMalloc(&bodies, count * sizeof(float4)));
    CHECK(cudaMalloc(&speeds, count * sizeof(float4)));
    CHECK(cudaMemcpy(bodies, start.data(), count * sizeof(float4), cudaMemcpyHostToDevice));
    CHECK(cudaMemset(speeds, 0, count * sizeof(float4)));
    return [=](int) {
        attract<<<count / 256, 256>>>(bodies, speeds, count);
        move<<<count / 256, 256>>>(bodies, speeds);
    };
}

// --- The loop of steps.

double now_ms() {
    auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::milli>(since).count();
}

int main(int argc, char** argv) {
    if (argc < 6) {
        std::fprintf(stderr, "native NAME found|repaired STEPS WARMUP REPEATS [TIMES]\n");
        return 2;
    }
    std::string name = argv[1];
    bool repaired = std::strcmp(argv[2], "repaired") == 0;
    int steps = std::atoi(argv[3]), warmup = std::atoi(argv[4]), repeats = std::atoi(argv[5]);
    Step step;
    if (name == "synced_stencil") step = synced_stencil(repaired);
    else if (name == "temporaries") step = temporaries(repaired);
    else if (name == "one_stream") step = one_stream(repaired);
    else if (name == "nbody") step = nbody(repaired);
    else return std::fprintf(stderr, "no program %s\n", name.c_str()), 2;
    for (int index = 0; index < warmup; ++index) step(index);
    CHECK(cudaDeviceSynchronize());
    std::string runs;
    for (int repeat = 0; repeat < repeats; ++repeat) {
        if (repeat > 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
        // The host runs ahead of the GPU; a capture of the program must not have these events.
        std::vector<cudaEvent_t> marks(argc > 6 ? steps + 1 : 0);
        for (cudaEvent_t& mark : marks) CHECK(cudaEventCreate(&mark));
        double began = now_ms();
        for (int index = 0; index < steps; ++index) {
            if (!marks.empty()) CHECK(cudaEventRecord(marks[index]));
            step(warmup + index);
        }
        if (!marks.empty()) CHECK(cudaEventRecord(marks[steps]));
        CHECK(cudaDeviceSynchronize());
        double mean = (now_ms() - began) / steps;
        std::string each;
        for (size_t index = 1; index < marks.size(); ++index) {
            float took_ms;
            CHECK(cudaEventElapsedTime(&took_ms, marks[index - 1], marks[index]));
            each += (index > 1 ? ", " : "") + std::to_string(took_ms);
        }
        std::printf("step time: %.4f ms (mean of %d steps)\n", mean, steps);
        std::fflush(stdout);
        runs += (repeat ? ", " : "") + std::string("{\"mean_ms\": ") + std::to_string(mean)
                + ", \"step_ms\": [" + each + "]}";
    }
    if (argc > 6) {
        std::FILE* file = std::fopen(argv[6], "w");
        if (file == nullptr) return 1;
        std::fprintf(file, "[%s]\n", runs.c_str());
        std::fclose(file);
    }
    return 0;
}
