#include "model/params.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/memory.h"

size_t shard_padded(size_t count, int ranks)
{
    size_t step = (size_t)ranks * SHARD_ALIGN;
    return (count + step - 1) / step * SHARD_ALIGN;
}

/* Splits elements [offset, offset + count) of the flat model over the shard group. Adds this rank's shard to the
 * table and returns it. */
static Shard *add_shard(Params *p, size_t offset, size_t count)
{
    const Placement *place = &p->placement;
    Shard *shard = &p->shard[p->shards++];
    shard->padded = place->by == SHARD_NOTHING ? count : shard_padded(count, place->ranks);
    size_t begin = (size_t)place->rank * shard->padded, end = begin + shard->padded;
    if (begin > count) begin = count;
    if (end > count) end = count;
    shard->begin = offset + begin;
    shard->count = end - begin;
    shard->at = p->held;
    p->held += shard->padded;
    return shard;
}

void params_place(Params *p, Placement placement)
{
    if (placement.ranks == 0) placement.ranks = 1;
    if (placement.tp == 0) placement.tp = 1;
    if (placement.ep == 0) placement.ep = 1;
    CHECK(placement.by != SHARD_NOTHING || placement.ranks == 1);
    CHECK(!placement.whole_weights || placement.by == SHARD_MODEL || placement.by == SHARD_UNITS);
    CHECK(!placement.whole_grads || placement.by == SHARD_MODEL);
    p->placement = placement;
    p->shard = calloc((size_t)p->views + (size_t)p->units, sizeof *p->shard);
    if (!p->shard) fatal("out of memory for the table of shards");
    switch (placement.by) {
    case SHARD_NOTHING:
    case SHARD_MODEL: add_shard(p, 0, p->count); break;
    case SHARD_UNITS:
        for (int u = 0; u < p->units; u++) p->unit[u].shard = add_shard(p, p->unit[u].offset, p->unit[u].count);
        break;
    case SHARD_VIEWS:
        for (int v = 0; v < p->views; v++) p->view[v].shard = add_shard(p, p->view[v].offset, p->view[v].size);
        break;
    }
}

/* Sets the weights pointers of shards and units. A buffer of whole weights is laid out shard by shard: for each entry
 * of the shard table, the padded shards of rank 0, 1, ... one after the other. */
static void place_weights(Params *p)
{
    const Placement *place = &p->placement;
    size_t ranks = (size_t)place->ranks;
    for (int n = 0; n < p->shards; n++) {
        Shard *shard = &p->shard[n];
        size_t in_whole = shard->at * ranks + (size_t)place->rank * shard->padded;
        shard->weights = p->weights + (place->whole_weights ? in_whole : shard->at);
    }
    for (int u = 0; u < p->units; u++) {
        Unit *unit = &p->unit[u];
        if (place->by == SHARD_NOTHING || (place->whole_weights && place->by == SHARD_MODEL))
            unit->weights = p->weights + unit->offset;
        else if (place->whole_weights)
            unit->weights = p->weights + unit->shard->at * ranks; /* where rank 0's shard of the unit begins */
    }
}

Params experts_create(const ModelConfig *c, Placement placement, const Kernels *kernels)
{
    Params p = experts_table(c, placement.ep ? placement.ep : 1, placement.ep_rank);
    params_place(&p, placement);
    params_allocate(&p, kernels);
    return p;
}

Params params_create(const ModelConfig *c, Placement placement, const Kernels *kernels)
{
    Params p = params_table_split(c, placement.tp ? placement.tp : 1, placement.tp_rank);
    params_place(&p, placement);
    params_allocate(&p, kernels);
    return p;
}

void params_allocate(Params *p, const Kernels *kernels)
{
    const Placement *place = &p->placement;
    size_t everyone = p->held * (size_t)place->ranks;
    p->weights = memory_alloc((place->whole_weights ? everyone : p->held) * sizeof *p->weights, MEMORY_PARAMETERS);
    if (MASTER_BYTES) p->master = memory_alloc(p->held * sizeof *p->master, MEMORY_PARAMETERS);
    p->grad_count = place->whole_grads ? everyone : p->held;
    p->grads = memory_alloc(p->grad_count * sizeof *p->grads, MEMORY_GRADIENTS);
    if (place->whole_grads) p->reduced_grads = memory_alloc(p->held * sizeof *p->reduced_grads, MEMORY_GRADIENTS);
    place_weights(p);
    for (int n = 0; n < p->shards; n++) {
        Shard *shard = &p->shard[n];
        shard->master = MASTER_BYTES ? p->master + shard->at : (acc *)shard->weights;
        shard->grads = (place->whole_grads ? p->reduced_grads : p->grads) + shard->at;
        size_t padding = shard->padded - shard->count;
        kernels->fill(shard->master + shard->count, 0, padding * sizeof *shard->master);
        kernels->fill(shard->weights + shard->count, 0, padding * sizeof *shard->weights);
        kernels->fill(shard->grads + shard->count, 0, padding * sizeof *shard->grads);
    }
    if (place->by == SHARD_NOTHING || place->whole_grads)
        for (int u = 0; u < p->units; u++) p->unit[u].grads = p->grads + p->unit[u].offset;
}

void params_free(Params *p)
{
    memory_free(p->master);
    memory_free(p->weights);
    memory_free(p->grads);
    memory_free(p->reduced_grads);
    free(p->view);
    free(p->unit);
    free(p->shard);
    *p = (Params){0};
}

const View *params_find(const Params *p, const char *name)
{
    for (; p; p = p->next)
        for (int v = 0; v < p->views; v++)
            if (strcmp(p->view[v].name, name) == 0) return &p->view[v];
    return NULL;
}

Overlap params_overlap(const View *view, const Shard *shard)
{
    size_t begin = view->offset > shard->begin ? view->offset : shard->begin;
    size_t view_end = view->offset + view->size, shard_end = shard->begin + shard->count;
    size_t end = view_end < shard_end ? view_end : shard_end;
    if (begin >= end) return (Overlap){0};
    return (Overlap){.count = end - begin, .in_view = begin - view->offset, .in_shard = begin - shard->begin};
}

bool params_counts(const Params *params, const View *view)
{
    return params->placement.replica == 0 && view->replica == 0; /* the first of the ranks that hold the same block */
}
