#include "compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "observe/verify.h"

/* max|ours - theirs| over the elements of the view that this rank holds. `block`: the same block of the twin's
 * tensor. */
static double difference_of(const Params *p, const View *v, What what, const acc *block)
{
    double worst = 0, difference, unused;
    if (what == WHOLE_WEIGHTS) {
        const Unit *unit = &p->unit[v->unit];
        verify_compare(unit->weights + (v->offset - unit->offset), block, v->size, &worst, &unused);
        return worst;
    }
    for (int i = 0; i < p->shards; i++) {
        const Shard *shard = &p->shard[i];
        Overlap o = params_overlap(v, shard);
        if (o.count == 0) continue;
        verify_compare((what == GRADS ? shard->grads : shard->master) + o.in_shard, block + o.in_view, o.count,
                       &difference, &unused);
        worst = fmax(worst, difference);
    }
    return worst;
}

static const acc *values_of(const Params *theirs, What what)
{
    return what == GRADS ? theirs->grads : theirs->shard[0].master;
}

static double worst_of_table(const Params *p, What what, const Params *whole, double largest_of_all, Outcome *out)
{
    const acc *theirs = values_of(whole, what);
    double worst = 0;
    for (int n = 0; n < p->views; n++) {
        const View *v = &p->view[n], *w = &whole->view[n];
        double largest, unused;
        verify_compare(theirs + w->offset, theirs + w->offset, w->size, &unused, &largest);
        acc *block = malloc(v->size * sizeof *block);
        params_take_block(v, theirs + w->offset, block);
        double error = verify_error(difference_of(p, v, what, block), largest, largest_of_all);
        free(block);
        if (error > worst && error > out->gradient && error > out->weight)
            memcpy(out->where, v->name, sizeof out->where);
        worst = fmax(worst, error);
    }
    return worst;
}

double worst_error(const Params *p, What what, const Params *theirs, Outcome *out)
{
    double largest = 0, worst = 0;
    for (const Params *t = theirs; t; t = t->next)
        for (size_t i = 0; i < t->count; i++) largest = fmax(largest, fabs((double)values_of(t, what)[i]));
    for (; p; p = p->next, theirs = theirs->next) worst = fmax(worst, worst_of_table(p, what, theirs, largest, out));
    return worst;
}

bool padding_is_zero(const Params *p)
{
    for (int n = 0; n < p->views; n++)
        for (int i = 0; i < p->shards; i++) {
            Overlap o = params_overlap(&p->view[n], &p->shard[i]);
            size_t valid = (size_t)p->view[n].valid_rows * (size_t)p->view[n].cols;
            for (size_t e = 0; e < o.count; e++)
                if (o.in_view + e >= valid &&
                    (p->shard[i].master[o.in_shard + e] != 0 || p->shard[i].grads[o.in_shard + e] != 0))
                    return false;
        }
    return true;
}

uint64_t bits_of(const Params *p)
{
    uint64_t hash = HASH_START;
    for (; p; p = p->next)
        for (int i = 0; i < p->shards; i++)
            hash = hash_bytes(hash, p->shard[i].master, p->shard[i].count * sizeof(acc));
    return hash;
}
