#include "exchange.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { BEHIND = 16, UNTOUCHED = 0xa5 }; /* bytes behind `out`, and what out and they hold before the call */

typedef struct {
    const Kernels *kernels;
    Group *group;
    int call; /* also marks the bytes, so that two calls in flight cannot be taken for each other */
    bool to_all;
    size_t count;
    CommType type;
    int distance;
    char *in, *out; /* [pieces * count] each, `out` with BEHIND bytes more, in the memory of `kernels` */
} Exchange;

/* Byte k of what rank `from` sends to rank `to`. */
static unsigned char byte_of(int call, int from, int to, size_t k)
{
    uint64_t x = ((((uint64_t)call * 64 + (uint64_t)from) * 64 + (uint64_t)to) << 32) + k;
    x = (x ^ x >> 29) * 0x9e3779b97f4a7c15u;
    return (unsigned char)(x >> 40);
}

static int modulo(long a, int n)
{
    return (int)((a % n + n) % n);
}

static int pieces(const Exchange *e)
{
    return e->to_all ? group_size(e->group) : 1;
}

static size_t piece_bytes(const Exchange *e)
{
    return e->count * comm_type_size(e->type);
}

/* What this rank's `in` must hold (received false), or its `out` after the call. The caller frees it. */
static unsigned char *bytes_of(const Exchange *e, bool received)
{
    int n = group_size(e->group), me = group_rank(e->group);
    size_t piece = piece_bytes(e);
    unsigned char *bytes = malloc((size_t)pieces(e) * piece + BEHIND);
    CHECK(bytes);
    for (int p = 0; p < pieces(e); p++)
        for (size_t k = 0; k < piece; k++) {
            int to = e->to_all ? p : modulo((long)me + e->distance, n);
            int from = e->to_all ? p : modulo((long)me - e->distance, n);
            bytes[(size_t)p * piece + k] = received ? byte_of(e->call, from, me, k) : byte_of(e->call, me, to, k);
        }
    memset(bytes + (size_t)pieces(e) * piece, UNTOUCHED, BEHIND);
    return bytes;
}

static Work *begin(Exchange *e)
{
    size_t all = (size_t)pieces(e) * piece_bytes(e);
    unsigned char *bytes = bytes_of(e, false);
    e->in = e->kernels->alloc(all + 1);
    e->out = e->kernels->alloc(all + BEHIND);
    CHECK(e->in && e->out);
    e->kernels->upload(e->in, bytes, all);
    e->kernels->fill(e->out, UNTOUCHED, all + BEHIND);
    free(bytes);
    if (e->to_all) return comm_start_all_to_all(e->group, e->out, e->in, e->count, e->type);
    return comm_start_send_receive(e->group, e->out, e->in, e->count, e->type, e->distance);
}

/* Is everything as it must be after the call? Frees the buffers. */
static bool end(Exchange *e, Work *work)
{
    size_t all = (size_t)pieces(e) * piece_bytes(e);
    unsigned char *sent = bytes_of(e, false), *want = bytes_of(e, true), *got = malloc(all + BEHIND);
    CHECK(got);
    comm_wait(work);
    e->kernels->download(got, e->out, all + BEHIND);
    bool good = memcmp(got, want, all + BEHIND) == 0;
    e->kernels->download(got, e->in, all);
    good = good && memcmp(got, sent, all) == 0;
    e->kernels->free(e->in), e->kernels->free(e->out);
    free(sent), free(want), free(got);
    return good;
}

bool exchange_all_to_all(const Kernels *kernels, Group *group, size_t count, CommType type)
{
    Exchange e = {.kernels = kernels, .group = group, .to_all = true, .count = count, .type = type};
    return end(&e, begin(&e));
}

bool exchange_send_receive(const Kernels *kernels, Group *group, size_t count, CommType type, int distance)
{
    Exchange e = {.kernels = kernels, .group = group, .count = count, .type = type, .distance = distance};
    return end(&e, begin(&e));
}

bool exchange_in_flight(const Kernels *kernels, Group *group, bool reverse)
{
    enum { CALLS = 24 };
    static const int distances[] = {1, -1, 1, 2, -1, 0, -2};
    Exchange e[CALLS];
    Work *work[CALLS];
    for (int c = 0; c < CALLS; c++) {
        e[c] = (Exchange){.kernels = kernels, .group = group, .call = c, .to_all = c % 5 == 3, .type = COMM_REAL};
        e[c].count =
            c % 4 == 3 ? 40001 : 37; /* MPI sends short messages at once, and long ones when the other is there */
        e[c].distance = distances[c % 7];
        work[c] = begin(&e[c]);
        comm_progress();
    }
    bool good = true;
    for (int c = 0; c < CALLS; c++) {
        int next = reverse ? CALLS - 1 - c : c;
        good = end(&e[next], work[next]) && good;
    }
    return good;
}
