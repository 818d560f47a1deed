#include "ddp.h"

#include <stdlib.h>

#include "base/bug.h"
#include "base/error.h"

/* --- buckets --- */

Ddp ddp_create(Params *params, const MicroStep *micro_step, Group *group, DdpOptions options)
{
    Ddp ddp = {.params = params, .micro_step = micro_step, .group = group, .options = options};
    group_open_device(group, params->grads);
    double full = options.bucket_mb * 1048576 / sizeof(acc); /* elements */
    ddp.bucket = calloc((size_t)params->units, sizeof *ddp.bucket);
    if (!ddp.bucket) fatal("out of memory for the buckets");

    /* Walk the units as the backward pass finishes them, from the last layer to the root. */
    Bucket *open = NULL;
    for (int u = params->units - 1; u >= 0; u--) {
        if (!open) {
            open = &ddp.bucket[ddp.buckets++];
            open->last = u;
        }
        open->first = u;
        open->offset = params->unit[u].offset;
        open->count += params->unit[u].count;
        if (options.bucket_mb > 0 && (double)open->count >= full) open = NULL;
    }
    return ddp;
}

void ddp_free(Ddp *ddp)
{
    free(ddp->bucket);
    *ddp = (Ddp){0};
}

/* --- the step --- */

static void start(Ddp *ddp, Bucket *bucket)
{
    bucket->work =
        comm_start_all_reduce(ddp->group, ddp->params->grads + bucket->offset, bucket->count, COMM_ACC, COMM_SUM);
}

static void wait(Bucket *bucket)
{
    comm_wait(bucket->work);
    bucket->work = NULL;
}

/* The bucket whose last gradient this unit produces; NULL if there is none. */
static Bucket *completed_by(const Ddp *ddp, int unit)
{
    for (int b = 0; b < ddp->buckets; b++)
        if (ddp->bucket[b].first == unit) return &ddp->bucket[b];
    return NULL;
}

/* The parameter seam: a unit's gradients are complete on this rank. */
static void after_backward(void *self, int unit)
{
    Ddp *ddp = self;
    Bucket *bucket = completed_by(ddp, unit);
    if (!bucket || !(backward_reduces(ddp->micro_step) || BUG(reduce_every_micro_step))) return;
    if (ddp->options.bucket_mb == 0) return; /* ddp_finish reduces everything */
    if (BUG(forget_last_bucket) && unit == 0) return;
    start(ddp, bucket);
    /* always true here unless reduce_every_micro_step is on: then the next micro-step adds to the same bucket */
    bool stays_until_finish = backward_reduces(ddp->micro_step);
    if (!ddp->options.overlap || !stays_until_finish) wait(bucket);
}

ParameterSeam ddp_seam(Ddp *ddp)
{
    return (ParameterSeam){.self = ddp, .after_backward = after_backward};
}

void ddp_finish(Ddp *ddp)
{
    if (ddp->options.bucket_mb == 0) start(ddp, &ddp->bucket[0]); /* the naive form: everything, now */
    for (int b = 0; b < ddp->buckets; b++) wait(&ddp->bucket[b]);
}

void ddp_replicas(const Ddp *ddp, Replicas *replicas)
{
    replicas_add(replicas, ddp->group, EQUAL_SHARDS);
}
