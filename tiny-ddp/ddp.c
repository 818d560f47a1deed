#include "ddp.h"

#include <stdlib.h>

#include "base/bug.h"
#include "base/error.h"

/* --- buckets --- */

Ddp ddp_create(Params *params, const MicroStep *micro_step, Group *group, DdpOptions options)
{
    Ddp ddp = {.params = params, .micro_step = micro_step, .group = group, .options = options};
    group_open_device(group, params->grads);
    double full = options.bucket_mb * 1048576 / sizeof(acc); /* elements in a full bucket */
    ddp.bucket = calloc((size_t)params->units, sizeof *ddp.bucket);
    if (!ddp.bucket) fatal("out of memory for the buckets");

    /* Fill the buckets in the order in which the backward pass finishes the units: from the last layer to the root. */
    Bucket *open = NULL;
    for (int u = params->units - 1; u >= 0; u--) {
        if (params->unit[u].count == 0) continue; /* the root unit of experts */
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

/* Hook of the parameter seam: this rank has computed the unit's gradients. If they complete a bucket, its all-reduce
 * starts. */
static void after_backward(void *self, int unit)
{
    Ddp *ddp = self;
    Bucket *bucket = completed_by(ddp, unit);
    if (!bucket || !(backward_reduces(ddp->micro_step) || BUG(reduce_every_micro_step))) return;
    if (ddp->options.bucket_mb == 0) return; /* ddp_finish reduces all gradients in one call */
    if (BUG(forget_last_bucket) && unit == 0) return;
    start(ddp, bucket);
    /* Always true unless the bug reduce_every_micro_step is on. With the bug, wait: the next micro-step adds to this
     * bucket. */
    bool stays_until_finish = backward_reduces(ddp->micro_step);
    if (!ddp->options.overlap || !stays_until_finish) wait(bucket);
}

ParameterSeam ddp_seam(Ddp *ddp)
{
    return (ParameterSeam){.self = ddp, .after_backward = after_backward};
}

void ddp_finish(Ddp *ddp)
{
    if (ddp->options.bucket_mb == 0) start(ddp, &ddp->bucket[0]); /* the naive form: one all-reduce of all gradients */
    for (int b = 0; b < ddp->buckets; b++) wait(&ddp->bucket[b]);
}

void ddp_replicas(const Ddp *ddp, Replicas *replicas)
{
    replicas_add(replicas, ddp->params, ddp->group, EQUAL_SHARDS);
}
