/* The feed-forward of a layer with experts, for one row x:
 *
 *     y = shared(x) + sum over the k chosen experts e of  w_e expert_e(x)
 *
 * The router computes a logit for each expert and chooses k of them. Rows are then sorted by expert, so that each expert
 * computes on one run of rows; on several ranks the expert seam brings the rows to the ranks of their experts. A row's
 * copy is a slot: S rows have S k slots.
 *
 *     x --router--> choice, weight          expert_slots: where each copy goes
 *     x --rows_to_slots--> slots ==send==> expert rows --gate, up--> --swiglu--> --down--> results
 *     y <--rows_from_slots (times weight)-- slots <==send_back== results
 */
#include "comm/comm.h"
#include "model/model.h"

/* One chunk of the rows of a micro-step, in one layer. */
typedef struct {
    int l, number, begin, rows; /* rows [begin, begin + rows) of the stream */
    int *slot, *first, *expert_first;
    real *slots;                    /* scratch: on the way to the experts */
    real *results;                  /* kept: the experts' results, in slots */
    real *x, *gate_up, *hidden;     /* kept, of this rank's experts */
    real *out, *dgate_up, *dhidden; /* scratch, of this rank's experts */
} Chunk;

static Chunk chunk_at(const Model *m, const Activations *activations, int l, int number)
{
    const MoeConfig *c = &m->config.moe;
    const MoeKept *a = &activations->layer[l].moe;
    const Scratch *t = &m->scratch;
    int S = activations->rows.count / m->stream_parts, chunks = m->expert_chunks;
    int begin = (int)((long)S * number / chunks), end = (int)((long)S * (number + 1) / chunks);
    int local = c->experts / m->experts.placement.ep;
    size_t C = (size_t)m->config.width, F = (size_t)c->ff, k = (size_t)c->top_k;
    size_t slot = (size_t)begin * k, row = (size_t)number * (size_t)m->expert_rows;
    bool travel = m->seams.experts.send != NULL; /* else slots and expert rows are the same */
    return (Chunk){.l = l,
                   .number = number,
                   .begin = begin,
                   .rows = end - begin,
                   .slot = a->slot + slot,
                   .first = a->first + (size_t)number * (size_t)(c->experts + 1),
                   .expert_first = travel ? a->expert_first + (size_t)number * (size_t)(local + 1)
                                          : a->first + (size_t)number * (size_t)(c->experts + 1),
                   .slots = t->slots + slot * C,
                   .results = a->results + slot * C,
                   .x = a->x + (travel ? row : slot) * C,
                   .gate_up = a->gate_up + (travel ? row : slot) * 2 * F,
                   .hidden = a->hidden + (travel ? row : slot) * F,
                   .out = travel ? t->expert_rows + row * C : a->results + slot * C,
                   .dgate_up = t->dexpert_gate_up + (travel ? row : slot) * 2 * F,
                   .dhidden = t->dexpert_hidden + (travel ? row : slot) * F};
}

typedef struct {
    Linear router, gate_up, down;             /* of all rows */
    const real *expert_gate_up, *expert_down; /* [local experts, 2F, C], [local experts, C, F] */
    acc *dexpert_gate_up, *dexpert_down;
} Weights;

static Linear linear_at(const Unit *unit, size_t at, int in, int out)
{
    return (Linear){unit->weights + at, unit->grads ? unit->grads + at : NULL, in, out};
}

static Weights weights_of(const Model *m, int l)
{
    const LayerLayout *at = &m->layout;
    const Unit *unit = &m->params.unit[1 + l], *experts = &m->experts.unit[1 + l];
    int C = m->config.width, F = m->config.ff;
    return (Weights){
        .router = linear_at(unit, at->router, C, m->config.moe.experts),
        .gate_up = linear_at(unit, at->gate_up, C, 2 * F),
        .down = linear_at(unit, at->down, F, C),
        .expert_gate_up = experts->weights + at->expert_gate_up,
        .expert_down = experts->weights + at->expert_down,
        .dexpert_gate_up = experts->grads ? experts->grads + at->expert_gate_up : NULL,
        .dexpert_down = experts->grads ? experts->grads + at->expert_down : NULL,
    };
}

static RouterShape router_shape(const Model *m, int rows)
{
    const MoeConfig *c = &m->config.moe;
    return (RouterShape){rows, c->experts, c->top_k, c->router == ROUTER_SIGMOID, c->renormalize};
}

/* An expert takes at most so many of `rows` rows; 0: all. */
static int capacity(const MoeConfig *c, int rows)
{
    if (c->capacity == 0) return 0;
    double most = c->capacity * rows * c->top_k / c->experts;
    return most > rows ? rows : (int)most + ((int)most < most);
}

/* Sorts the chunk's choices and starts sending its rows. Returns how many rows this rank's experts get. */
static int send(Model *m, Activations *activations, int l, const Chunk *h)
{
    const MoeConfig *c = &m->config.moe;
    const Kernels *k = &m->kernels;
    const ExpertSeam *s = &m->seams.experts;
    LayerKept *a = &activations->layer[l];
    int C = m->config.width, E = c->experts, received = h->rows * c->top_k;
    const int *choice = a->moe.choice + (size_t)h->begin * (size_t)c->top_k;
    k->expert_slots(h->slot, h->first, m->router.count + (size_t)l * (size_t)(E + 1), choice, h->rows, c->top_k, E,
                    capacity(c, h->rows));
    if (s->plan) received = s->plan(s->self, l, h->number, h->expert_first, h->first);
    k->rows_to_slots(s->send ? h->slots : h->x, a->n2 + (size_t)h->begin * (size_t)C, h->slot, h->rows, c->top_k, C);
    if (s->send) s->send(s->self, l, h->number, h->slots);
    return received;
}

/* Computes the chunk's rows on this rank's experts, and starts sending the results back. */
static void compute(Model *m, const Chunk *h, const Weights *w, int rows)
{
    const Kernels *k = &m->kernels;
    const ExpertSeam *s = &m->seams.experts;
    int C = m->config.width, F = m->config.moe.ff, local = m->config.moe.experts / m->experts.placement.ep;
    if (s->receive) s->receive(s->self, h->l, h->number, h->x);
    k->grouped_forward(h->gate_up, h->x, w->expert_gate_up, h->expert_first, local, rows, C, 2 * F);
    comm_progress();
    k->swiglu_forward(h->hidden, h->gate_up, rows, F);
    k->grouped_forward(h->out, h->hidden, w->expert_down, h->expert_first, local, rows, F, C);
    comm_progress();
    if (s->send_back) s->send_back(s->self, h->l, h->number, h->results, h->out);
}

const real *moe_forward(Model *m, Activations *activations, int l)
{
    const MoeConfig *c = &m->config.moe;
    const Kernels *k = &m->kernels;
    const ExpertSeam *s = &m->seams.experts;
    const Weights w = weights_of(m, l);
    LayerKept *a = &activations->layer[l];
    int S = activations->rows.count / m->stream_parts, C = m->config.width, F = m->config.ff, E = c->experts;
    int chunks = m->expert_chunks;
    real *y = m->scratch.delta, *shared = NULL;

    k->linear_forward(a->moe.logits, a->n2, w.router.w, S, C, E);
    const acc *bias = m->router.bias ? m->router.bias + (size_t)l * (size_t)E : NULL;
    k->router_forward(a->moe.choice, a->moe.weight, a->moe.logits, bias, NULL, router_shape(m, S));
    if (m->router.chosen) {
        const int *forced = m->router.chosen(m->router.self, l, a->moe.choice, S);
        if (forced) k->router_forward(a->moe.choice, a->moe.weight, a->moe.logits, bias, forced, router_shape(m, S));
    }
    k->fill(m->router.count + (size_t)l * (size_t)(E + 1), 0, (size_t)(E + 1) * sizeof *m->router.count);

    for (int i = 0; i < chunks; i++) {
        Chunk h = chunk_at(m, activations, l, i);
        a->moe.received[i] = send(m, activations, l, &h);
    }
    if (F > 0) { /* the shared expert computes while the rows travel */
        shared = y;
        k->linear_forward(a->gate_up, a->n2, w.gate_up.w, S, C, 2 * F);
        k->swiglu_forward(a->hidden, a->gate_up, S, F);
        k->linear_forward(shared, a->hidden, w.down.w, S, F, C);
        comm_progress();
    }
    for (int i = 0; i < chunks; i++) {
        Chunk h = chunk_at(m, activations, l, i);
        compute(m, &h, &w, a->moe.received[i]);
    }
    for (int i = 0; i < chunks; i++) {
        Chunk h = chunk_at(m, activations, l, i);
        size_t at = (size_t)h.begin * (size_t)C;
        if (s->receive_back) s->receive_back(s->self, l, i);
        k->rows_from_slots(y + at, shared ? shared + at : NULL, h.results, h.slot,
                           a->moe.weight + (size_t)h.begin * (size_t)c->top_k, h.rows, c->top_k, C);
    }
    return y;
}

/* --- backward --- */

/* The gradients of the chunk's results, and of the weights that they were multiplied by; starts sending the former. */
static void send_gradients(Model *m, Activations *activations, const Chunk *h)
{
    const ExpertSeam *s = &m->seams.experts;
    int C = m->config.width, top_k = m->config.moe.top_k;
    size_t at = (size_t)h->begin * (size_t)top_k;
    m->kernels.rows_from_slots_backward(h->slots, m->scratch.dweight + at, m->scratch.dx + (size_t)h->begin * (size_t)C,
                                        h->results, h->slot, activations->layer[h->l].moe.weight + at, h->rows, top_k,
                                        C);
    if (s->send) s->send(s->self, h->l, h->number, h->slots);
}

/* The backward pass of this rank's experts. The gradient of their rows overwrites h->out, or without a seam h->results,
 * which are not needed any more; it starts on its way back. */
static void compute_gradients(Model *m, const Chunk *h, const Weights *w, int rows)
{
    const Kernels *k = &m->kernels;
    const ExpertSeam *s = &m->seams.experts;
    int C = m->config.width, F = m->config.moe.ff, local = m->config.moe.experts / m->experts.placement.ep;
    real *dout = s->send ? h->out : h->slots;
    if (s->receive) s->receive(s->self, h->l, h->number, dout);
    k->grouped_backward_weight(w->dexpert_down, dout, h->hidden, h->expert_first, local, rows, F, C);
    k->grouped_backward_input(h->dhidden, dout, w->expert_down, h->expert_first, local, rows, F, C);
    comm_progress();
    k->swiglu_backward(h->dgate_up, h->dhidden, h->gate_up, rows, F);
    k->grouped_backward_weight(w->dexpert_gate_up, h->dgate_up, h->x, h->expert_first, local, rows, C, 2 * F);
    k->grouped_backward_input(h->out, h->dgate_up, w->expert_gate_up, h->expert_first, local, rows, C, 2 * F);
    comm_progress();
    if (s->send_back) s->send_back(s->self, h->l, h->number, h->results, h->out);
}

/* The gradient of the router's input, dn[S, C]; adds that of its weights. */
static void router_gradient(Model *m, Activations *activations, int l, const Weights *w, int S)
{
    const MoeConfig *c = &m->config.moe;
    const Kernels *k = &m->kernels;
    LayerKept *a = &activations->layer[l];
    Scratch *t = &m->scratch;
    int group_rows;
    const acc *slope = router_slope(m, &a->moe, S, &group_rows);
    double z = c->z_coef / (m->micro_step.count * m->router.rows);
    k->router_backward(t->dlogits, t->aux, t->dweight, a->moe.logits, a->moe.choice, a->moe.weight, slope, group_rows,
                       z, router_shape(m, S));
    k->sum(m->router.aux_sum, t->aux, (size_t)S);
    k->linear_backward_weight(w->router.dw, t->dlogits, a->n2, S, m->config.width, c->experts);
    k->linear_backward_input(t->dn, t->dlogits, w->router.w, S, m->config.width, c->experts);
}

/* The shared expert; its gradient of n2 goes to `dn`. */
static void shared_gradient(Model *m, LayerKept *a, const Weights *w, real *dn, int S)
{
    const Kernels *k = &m->kernels;
    Scratch *t = &m->scratch;
    int C = m->config.width, F = m->config.ff;
    k->linear_backward_weight(w->down.dw, t->dx, a->hidden, S, F, C);
    k->linear_backward_input(t->dhidden, t->dx, w->down.w, S, F, C);
    comm_progress();
    k->swiglu_backward(t->dgate_up, t->dhidden, a->gate_up, S, F);
    k->linear_backward_weight(w->gate_up.dw, t->dgate_up, a->n2, S, C, 2 * F);
    k->linear_backward_input(dn, t->dgate_up, w->gate_up.w, S, C, 2 * F);
    comm_progress();
}

const real *moe_backward(Model *m, Activations *activations, int l)
{
    const ExpertSeam *s = &m->seams.experts;
    const Kernels *k = &m->kernels;
    const Weights w = weights_of(m, l);
    LayerKept *a = &activations->layer[l];
    int S = activations->rows.count / m->stream_parts, C = m->config.width;
    real *dn = m->scratch.dn, *dshared = m->scratch.delta; /* delta is free in the backward pass */

    for (int i = 0; i < m->expert_chunks; i++) {
        Chunk h = chunk_at(m, activations, l, i);
        send_gradients(m, activations, &h);
    }
    if (m->config.ff > 0) shared_gradient(m, a, &w, dshared, S);
    router_gradient(m, activations, l, &w, S);
    if (m->config.ff > 0) k->add_rows(dn, dshared, (size_t)S * (size_t)C);
    for (int i = 0; i < m->expert_chunks; i++) {
        Chunk h = chunk_at(m, activations, l, i);
        compute_gradients(m, &h, &w, a->moe.received[i]);
    }
    for (int i = 0; i < m->expert_chunks; i++) {
        Chunk h = chunk_at(m, activations, l, i);
        real *to = dn + (size_t)h.begin * (size_t)C;
        if (s->receive_back) s->receive_back(s->self, l, i);
        k->rows_from_slots(to, to, h.results, h.slot, NULL, h.rows, m->config.moe.top_k, C);
    }
    return dn;
}
