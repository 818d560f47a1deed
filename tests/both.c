#include "both.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* A bf16 number has 8 significant bits. The largest errors on an H200 are 6.8e-3 for real (a norm's result, which is
 * rounded twice) and 1.3e-6 for acc (sums, in fp32). The bounds are about twice and eight times these errors. */
#if defined(PRECISION_FP64)
static const double BOUND[] = {[IN_REAL] = 1e-12, [IN_ACC] = 1e-12};
#elif defined(PRECISION_FP32)
static const double BOUND[] = {[IN_REAL] = 1e-5, [IN_ACC] = 1e-5};
#else
static const double BOUND[] = {[IN_REAL] = 1.4e-2, [IN_ACC] = 1e-5};
#endif

enum { ARRAYS_MAX = 32, NAMES_MAX = 64 };
Kernels gpu;
static Both arrays[ARRAYS_MAX];
static int array_count;
static struct {
    const char *what;
    double error;
} worst[NAMES_MAX];
static int name_count;

bool both_open(void)
{
    enum { ROWS = 4096 };
    const char *complaint = kernels_cuda(&gpu, 0);
    printf("%s\n", complaint ? complaint : gpu.describe());
    if (complaint) return false;
    static const ModelConfig largest = {.width = 4096, .head_dim = 256};
    size_t bytes = gpu.workspace_bytes(largest.width, largest.head_dim, ROWS);
    gpu.use_workspace(gpu.alloc(bytes), bytes);
    return true;
}

/* --- arrays --- */

static size_t size_of(BothType type)
{
    return type == IN_REAL ? sizeof(real) : type == IN_ACC ? sizeof(acc) : 1;
}

static Both *both_new(size_t count, BothType type)
{
    CHECK(array_count < ARRAYS_MAX);
    Both *b = &arrays[array_count++];
    *b = (Both){.count = count, .type = type};
    b->host = calloc(count + 1, sizeof(double));
    b->device = gpu.alloc(count * size_of(type) + 16);
    CHECK(b->host && b->device);
    return b;
}

void both_to_device(Both *b)
{
    size_t size = size_of(b->type);
    char *there = malloc(b->count * size + 1);
    CHECK(there);
    for (size_t i = 0; i < b->count && b->type != IN_BYTES; i++) {
        double x = ((double *)b->host)[i];
        if (b->type == IN_REAL)
            ((real *)(void *)there)[i] = real_of(x);
        else
            ((acc *)(void *)there)[i] = (acc)x;
    }
    gpu.upload(b->device, b->type == IN_BYTES ? b->host : there, b->count * size);
    free(there);
}

/* Returns the device's numbers. The caller frees them. */
static double *numbers(const Both *b)
{
    char *there = malloc(b->count * size_of(b->type) + 1);
    double *x = malloc(b->count * sizeof *x + 1);
    CHECK(there && x && b->type != IN_BYTES);
    gpu.download(there, b->device, b->count * size_of(b->type));
    for (size_t i = 0; i < b->count; i++)
        x[i] = b->type == IN_REAL ? real_double(((real *)(void *)there)[i]) : (double)((acc *)(void *)there)[i];
    free(there);
    return x;
}

void both_to_host(Both *b)
{
    double *x = numbers(b);
    memcpy(b->host, x, b->count * sizeof *x);
    free(x);
}

Both *both_random(Random *random, size_t count, BothType type)
{
    Both *b = both_new(count, type);
    for (size_t i = 0; i < count; i++) {
        double x = random_real(random);
        ((double *)b->host)[i] = type == IN_REAL ? real_double(real_of(x)) : (double)(acc)x;
    }
    both_to_device(b);
    return b;
}

static Both *both_constant(size_t count, BothType type, double x)
{
    Both *b = both_new(count, type);
    for (size_t i = 0; i < count; i++) ((double *)b->host)[i] = x;
    both_to_device(b);
    return b;
}

Both *both_output(size_t count, BothType type)
{
    return both_constant(count, type, NAN);
}

Both *both_zero(size_t count, BothType type)
{
    return both_constant(count, type, 0);
}

Both *both_bytes(const void *from, size_t bytes)
{
    Both *b = both_new(bytes, IN_BYTES);
    memcpy(b->host, from, bytes);
    both_to_device(b);
    return b;
}

void both_forget(void)
{
    for (int a = 0; a < array_count; a++) {
        free(arrays[a].host);
        gpu.free(arrays[a].device);
    }
    array_count = 0;
}

/* --- comparing --- */

double both_largest(const Both *b)
{
    double largest = 0;
    for (size_t i = 0; i < b->count; i++) {
        double x = fabs(((double *)b->host)[i]);
        if (isfinite(x)) largest = fmax(largest, x);
    }
    return largest;
}

void both_check_as(BothType type, const char *what, Both *b, double among)
{
    double *got = numbers(b), *want = b->host, difference = 0;
    for (size_t i = 0; i < b->count; i++) {
        double d = got[i] == want[i] ? 0 : fabs(got[i] - want[i]); /* also 0 for two equal infinities */
        if (!(d <= difference)) difference = isnan(d) ? INFINITY : d;
    }
    free(got);
    double scale = fmax(both_largest(b), among), error = scale > 0 ? difference / scale : difference > 0 ? INFINITY : 0;
    int n = 0;
    while (n < name_count && strcmp(worst[n].what, what) != 0) n++;
    CHECK(n < NAMES_MAX);
    if (n == name_count) worst[name_count++].what = what;
    worst[n].error = fmax(worst[n].error, error);
    if (!(error <= BOUND[type])) fail_msg("%s: the GPU is off by %.1e, bound %.0e", what, error, BOUND[type]);
}

void both_check(const char *what, Both *b, double among)
{
    both_check_as(b->type, what, b, among);
}

void both_report(void)
{
    printf("largest errors, bounds %.0e and, for sums, %.0e:", BOUND[IN_REAL], BOUND[IN_ACC]);
    for (int n = 0; n < name_count; n++) printf("%s %s %.1e", n % 6 ? "," : "\n ", worst[n].what, worst[n].error);
    printf("\n");
}
