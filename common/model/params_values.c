/* The values of parameters: initialized at random, copied to the host and back, collected over ranks, compared between
 * replicas. */
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/error.h"
#include "base/rng.h"
#include "model/params.h"

enum { RUN = 1 << 24 }; /* elements drawn between two calls of comm_progress */

/* Draws elements [begin, begin + count) of the block into to[count], each by its index in the whole parameter. */
static void draw(const Kernels *kernels, acc *to, const View *v, size_t begin, size_t count, uint64_t seed)
{
    size_t cols = (size_t)v->cols, valid = (size_t)v->valid_rows * cols;
    bool rows_are_whole = v->cols == v->whole_cols;
    double std = v->vector ? 0 : v->init_std;
    for (size_t done = 0; done < count;) {
        size_t at = begin + done, row = at / cols, col = at % cols, run = rows_are_whole ? count - done : cols - col;
        if (at >= valid) { /* padding */
            kernels->fill(to + done, 0, (count - done) * sizeof *to);
            return;
        }
        if (run > count - done) run = count - done;
        if (run > valid - at) run = valid - at;
        if (run > RUN) run = RUN;
        size_t index = ((size_t)v->row0 + row) * (size_t)v->whole_cols + (size_t)v->col0 + col;
        kernels->draw(to + done, index, run, seed, rng_stream(v->name), std);
        comm_progress(); /* tells the watchdog that this rank works: a large model takes long */
        done += run;
    }
}

void params_init(Params *p, const Kernels *kernels, uint64_t seed)
{
    if (p->next) params_init(p->next, kernels, seed);
    if (BUG(rank_seeded_init)) seed += (uint64_t)comm_world_rank();
    for (int n = 0; n < p->views; n++)
        for (int i = 0; i < p->shards; i++) {
            Overlap o = params_overlap(&p->view[n], &p->shard[i]);
            if (o.count == 0) continue;
            draw(kernels, p->shard[i].master + o.in_shard, &p->view[n], o.in_view, o.count, seed);
        }
    for (int i = 0; i < p->shards; i++) kernels->cast(p->shard[i].weights, p->shard[i].master, p->shard[i].count);
}

size_t params_whole_size(const View *v)
{
    return (size_t)v->whole_rows * (size_t)v->whole_cols;
}

void params_take_block(const View *v, const acc *whole, acc *block)
{
    size_t cols = (size_t)v->cols, valid = (size_t)v->valid_rows;
    for (size_t r = 0; r < valid; r++)
        memcpy(block + r * cols, whole + ((size_t)v->row0 + r) * (size_t)v->whole_cols + (size_t)v->col0,
               cols * sizeof *block);
    memset(block + valid * cols, 0, ((size_t)v->rows - valid) * cols * sizeof *block);
}

void params_put_block(const View *v, const acc *block, acc *whole)
{
    size_t cols = (size_t)v->cols;
    for (size_t r = 0; r < (size_t)v->valid_rows; r++)
        memcpy(whole + ((size_t)v->row0 + r) * (size_t)v->whole_cols + (size_t)v->col0, block + r * cols,
               cols * sizeof *block);
}

static acc *block_on_host(const View *v)
{
    acc *block = calloc(v->size + 1, sizeof *block);
    if (!block) fatal("out of memory for %s", v->name);
    return block;
}

void params_upload(Params *p, const Kernels *kernels, const View *view, const acc *host)
{
    acc *block = block_on_host(view);
    params_take_block(view, host, block);
    for (int i = 0; i < p->shards; i++) {
        Shard *shard = &p->shard[i];
        Overlap o = params_overlap(view, shard);
        if (o.count == 0) continue;
        kernels->upload(shard->master + o.in_shard, block + o.in_view, o.count * sizeof *block);
        kernels->cast(shard->weights + o.in_shard, shard->master + o.in_shard, o.count);
    }
    free(block);
}

void params_collect(const Params *p, const Kernels *kernels, const View *view, bool grads, acc *host)
{
    acc *block = block_on_host(view);
    for (int i = 0; i < p->shards; i++) {
        const Shard *shard = &p->shard[i];
        Overlap o = params_overlap(view, shard);
        const acc *from = (grads ? shard->grads : shard->master) + o.in_shard;
        if (o.count > 0) kernels->download(block + o.in_view, from, o.count * sizeof *block);
    }
    memset(host, 0, params_whole_size(view) * sizeof *host);
    if (params_counts(p, view)) params_put_block(view, block, host);
    free(block);
    if (!p->placement.model_group) return;
    comm_uncounted(1);
    /* exactly one rank put each element into `host`; the others add zero */
    comm_all_reduce(p->placement.model_group, host, params_whole_size(view), COMM_ACC, COMM_SUM);
    comm_uncounted(0);
}

/* --- replicas --- */

void replicas_add(Replicas *r, const Params *params, Group *group, Equality equal)
{
    if (!group || group_size(group) == 1) return;
    CHECK(r->rows < (int)(sizeof r->row / sizeof r->row[0]));
    r->row[r->rows].params = params;
    r->row[r->rows].group = group;
    r->row[r->rows++].equal = equal;
}

/* [all ranks of group] Do all ranks have the same `bytes` bytes at `data`, in the backend's memory? */
static bool same_bits(const Kernels *kernels, Group *group, const void *data, size_t bytes)
{
    char *host = malloc(bytes + 1);
    if (!host) fatal("out of memory to compare %zu bytes", bytes);
    kernels->download(host, data, bytes);
    bool same = comm_same_bits(group, host, bytes);
    free(host);
    return same;
}

/* Must the view be equal under a row of this kind? */
static bool concerns(Equality equal, const View *v)
{
    switch (equal) {
    case EQUAL_OVER_TP: return v->partial == PARTIAL_BY_ROWS || v->partial == PARTIAL_BY_HEADS;
    case EQUAL_KV_HEADS: return v->partial == PARTIAL_BY_KV_HEADS;
    default: return true;
    }
}

/* [all ranks of group] Does the group hold the view bit for bit alike, as the row demands? */
static bool view_is_equal(const Params *p, const Kernels *kernels, const View *v, Group *group, Equality equal)
{
    if (!concerns(equal, v)) return true;
    if (equal == EQUAL_WHOLE_WEIGHTS) {
        const Unit *unit = &p->unit[v->unit];
        const real *weights = unit->weights + (v->offset - unit->offset);
        return same_bits(kernels, group, weights, v->size * sizeof *weights);
    }
    bool same = true;
    for (int i = 0; i < p->shards; i++) {
        Overlap o = params_overlap(v, &p->shard[i]);
        const acc *master = p->shard[i].master + o.in_shard;
        if (o.count > 0) same = same_bits(kernels, group, master, o.count * sizeof *master) && same;
    }
    return same;
}

const char *params_unequal(const Params *p, const Kernels *kernels, const Replicas *replicas)
{
    const char *name = NULL;
    for (; p; p = p->next)
        for (int n = 0; n < p->views; n++)
            for (int r = 0; r < replicas->rows; r++)
                if (replicas->row[r].params == p &&
                    !view_is_equal(p, kernels, &p->view[n], replicas->row[r].group, replicas->row[r].equal) && !name)
                    name = p->view[n].name;
    return name;
}

const char *params_check_start(const Params *p, const Kernels *kernels, const Replicas *replicas)
{
    const char *unequal = params_unequal(p, kernels, replicas);
    return unequal ? complain("the ranks start from different weights: %s", unequal) : NULL;
}
