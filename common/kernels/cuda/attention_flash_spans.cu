/* Finds the keys that each query sees, and the strips of queries that see each block of 64 keys. attention_flash.cuh
 * describes the results. */
#include "attention_flash.cuh"

/* The indices of the ids in [lo, hi). Does both binary searches, for lo and for hi, in one loop. */
DEVICE Span find_ids(const int *id, int count, int lo, int hi)
{
    Span found = {0, 0};
    for (int step = count > 0 ? 1 << (31 - __clz(count)) : 0; step > 0; step /= 2) {
        int a = found.first + step, b = found.last + step;
        if (a <= count && id[a - 1] < lo) found.first = a;
        if (b <= count && id[b - 1] < hi) found.last = b;
    }
    return found;
}

/* A warp computes one strip, two queries a lane. The span is [0, 0) for queries that see nothing and for those
 * past the last query, which do not exist. */
static __global__ void find_spans(Spans spans, AttentionShape s)
{
    int strip = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    Strip sum = {INT_MAX, 0, 0, INT_MAX};
    for (int part = 0; part < STRIP; part += 32) {
        int i = strip * STRIP + part + threadIdx.x % 32;
        Span row = {0, 0};
        if (i < s.queries) row = find_ids(s.key_id, s.keys, s.lo[i], s.hi[i]);
        if (row.first >= row.last) row = {0, 0};
        spans.row[i] = row;
        if (row.last > 0) sum.lowest = min(sum.lowest, row.first);
        sum.highest = max(sum.highest, row.last);
        sum.full_from = max(sum.full_from, row.first);
        sum.full_to = min(sum.full_to, row.last);
    }
    sum.lowest = __reduce_min_sync(~0u, sum.lowest);
    sum.highest = __reduce_max_sync(~0u, sum.highest);
    sum.full_from = __reduce_max_sync(~0u, sum.full_from);
    sum.full_to = __reduce_min_sync(~0u, sum.full_to);
    if (threadIdx.x % 32 == 0) spans.strip[strip] = sum;
}

/* A warp computes spans.block for one block of 64 keys. */
static __global__ void find_strips(Spans spans, int strips, int blocks)
{
    int block = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (block >= blocks) return;
    int first = INT_MAX, last = 0;
    for (int i = lane; i < strips; i += 32)
        if (meets(spans.strip[i], block * 64, block * 64 + 64)) {
            first = min(first, i);
            last = i + 1;
        }
    first = __reduce_min_sync(~0u, first);
    last = __reduce_max_sync(~0u, last);
    if (lane == 0) spans.block[block] = {first, last};
}

/* The number of strips, rounded up to an even number, because a block of the forward kernel reads up to two strips. */
static size_t strips_of(int rows)
{
    return (size_t)divide_up(rows, 2 * STRIP) * 2;
}

/* About 8.4 bytes for each row. `rows`: the larger of the numbers of queries and keys. */
size_t attention_flash_workspace(int rows)
{
    return strips_of(rows) * (STRIP * sizeof(Span) + sizeof(Strip) + sizeof(Span));
}

static Spans spans_for(int rows)
{
    size_t strips = strips_of(rows);
    Spans spans;
    spans.strip = (Strip *)cuda_workspace(attention_flash_workspace(rows)); /* first: its type is the widest */
    spans.row = (Span *)(spans.strip + strips);
    spans.block = spans.row + strips * STRIP;
    return spans;
}

bool attention_flash_supports(int head_dim)
{
    return head_dim == 16 || head_dim == 32 || head_dim == 64 || head_dim == 128;
}

Spans flash_begin(AttentionShape s)
{
    if (!attention_flash_supports(s.head_dim)) fatal("attention=flash has no kernel for head_dim %d", s.head_dim);
    if (s.q_stride % 8 || s.kv_stride % 8) fatal("attention=flash needs rows that start at multiples of 16 bytes");
    Spans spans = spans_for(s.queries > s.keys ? s.queries : s.keys);
    find_spans<<<divide_up(s.queries, 2 * STRIP), 64, 0, cuda_stream()>>>(spans, s);
    CUDA_LAUNCHED();
    return spans;
}

void flash_find_strips(Spans spans, AttentionShape s)
{
    int blocks = divide_up(s.keys, 64);
    find_strips<<<divide_up(blocks, 4), 128, 0, cuda_stream()>>>(spans, divide_up(s.queries, STRIP), blocks);
    CUDA_LAUNCHED();
}
