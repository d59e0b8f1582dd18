/* A capture of any size: N short NVTX push/pop ranges on a few threads, no GPU needed.
 *
 *   gcc -O2 -I/usr/local/cuda/include nvtx_ranges.c -o nvtx_ranges -ldl -lpthread
 *   nsys profile -t nvtx -s none --cpuctxsw=none -o 2m ./nvtx_ranges 2000000 4
 */
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

struct job {
    long ranges;
    int thread;
};

static void *emit(void *argument) {
    const struct job *job = argument;
    char text[64];
    for (long i = 0; i < job->ranges; i += 2) {
        snprintf(text, sizeof text, "step %ld thread %d", (i / 2) % 50000, job->thread);
        nvtxRangePushA(text);
        nvtxRangePushA("forward");
        nvtxRangePop();
        nvtxRangePop();
    }
    return NULL;
}

int main(int argc, char **argv) {
    const long total = argc > 1 ? atol(argv[1]) : 2000000;
    int threads = argc > 2 ? atoi(argv[2]) : 4;
    if (threads < 1 || threads > 64) {
        threads = 4;
    }
    pthread_t handles[64];
    struct job jobs[64];
    for (int t = 0; t < threads; t++) {
        jobs[t] = (struct job){total / threads, t};
        pthread_create(&handles[t], NULL, emit, &jobs[t]);
    }
    for (int t = 0; t < threads; t++) {
        pthread_join(handles[t], NULL);
    }
    return 0;
}
