#include "expert_parallel.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/comm.h"
#include "kernels/memory.h"

ExpertParallel experts_parallel(Model *m, Group *ep, int rows)
{
    const MoeConfig *c = &m->config.moe;
    size_t ranks = (size_t)group_size(ep), layers = (size_t)m->config.layers;
    ExpertParallel p = {.kernels = m->kernels,
                        .ep = ep,
                        .experts = c->experts,
                        .local = c->experts / (int)ranks,
                        .top_k = c->top_k,
                        .width = m->config.width,
                        .chunks = m->expert_chunks,
                        .room = m->expert_rows,
                        .step_rows = (rows + m->expert_chunks - 1) / m->expert_chunks * c->top_k,
                        .layers = m->config.layers};
    if (ranks == 1) return p;
    size_t routes = layers * (size_t)p.chunks, room = (size_t)p.room;
    p.route = calloc(routes, sizeof *p.route);
    p.counts = calloc(ranks * (size_t)p.experts, sizeof *p.counts);
    if (!p.route || !p.counts) fatal("out of memory");
    p.orders = memory_alloc(routes * room * sizeof *p.orders, MEMORY_BUFFERS);
    p.arrived = memory_alloc((size_t)p.chunks * room * (size_t)p.width * sizeof *p.arrived, MEMORY_BUFFERS);
    group_open_device(ep, p.arrived);
    for (size_t r = 0; r < routes; r++) {
        p.route[r].order = p.orders + r * room;
        p.route[r].sent = calloc(2 * ranks, sizeof(int));
        if (!p.route[r].sent) fatal("out of memory");
        p.route[r].received = p.route[r].sent + ranks;
    }
    return p;
}

void experts_free(ExpertParallel *p)
{
    for (int r = 0; p->route && r < p->layers * p->chunks; r++) free(p->route[r].sent);
    free(p->route);
    free(p->counts);
    memory_free(p->orders);
    memory_free(p->arrived);
    *p = (ExpertParallel){0};
}

static Route *route_of(const ExpertParallel *p, int layer, int chunk)
{
    return &p->route[layer * p->chunks + chunk];
}

static real *arrived(const ExpertParallel *p, int chunk)
{
    return p->arrived + (size_t)chunk * (size_t)p->room * (size_t)p->width;
}

/* --- where rows go --- */

/* [all ranks of ep] counts[r, e]: the rows of rank r that go to expert e. */
static void exchange_counts(ExpertParallel *p, const int *first)
{
    size_t E = (size_t)p->experts;
    int *slots = malloc((E + 1) * sizeof *slots), *mine = p->counts + (size_t)group_rank(p->ep) * E;
    if (!slots) fatal("out of memory");
    p->kernels.download(slots, first, (E + 1) * sizeof *slots); /* a GPU is waited for here, and nowhere else */
    for (size_t e = 0; e < E; e++) mine[e] = slots[e + 1] - slots[e];
    free(slots);
    comm_all_gather(p->ep, p->counts, mine, E * sizeof *mine, COMM_BYTE);
}

/* The rows of `from` for the experts of rank `to`. */
static int rows_between(const ExpertParallel *p, int from, int to)
{
    const int *count = p->counts + (size_t)from * (size_t)p->experts + (size_t)to * (size_t)p->local;
    int rows = 0;
    for (int e = 0; e < p->local; e++) rows += count[e];
    return rows;
}

/* Ends the job if more rows arrive than there is room for. */
static void check_room(const ExpertParallel *p, int layer, int rows)
{
    int ranks = group_size(p->ep), most = 0;
    if (rows <= p->room) return;
    for (int to = 0; to < ranks; to++) {
        int arrive = 0;
        for (int from = 0; from < ranks; from++) arrive += rows_between(p, from, to);
        if (arrive > most) most = arrive;
    }
    fatal("--expert-room: layer %d: %d rows arrive at this rank, and it has room for %d; this takes --expert-room %.2f",
          layer, rows, p->room, (double)most / p->step_rows + 0.005);
}

/* Rows arrive in order of their ranks, and of one rank in order of the experts. Puts them into the order of the experts:
 * fills in order[rows] and first[local + 1], on the host. */
static void sort_by_expert(const ExpertParallel *p, int *order, int *first)
{
    int ranks = group_size(p->ep), at = 0;
    const int *count = p->counts + (size_t)group_rank(p->ep) * (size_t)p->local; /* count[r E + e], e local */
    size_t E = (size_t)p->experts;
    int *next = calloc((size_t)p->local, sizeof *next); /* the next free place of each expert */
    if (!next) fatal("out of memory");
    first[0] = 0;
    for (int e = 0; e < p->local; e++) {
        next[e] = first[e + 1] = first[e];
        for (int r = 0; r < ranks; r++) first[e + 1] += count[(size_t)r * E + (size_t)e];
    }
    for (int r = 0; r < ranks; r++)
        for (int e = 0; e < p->local; e++)
            for (int i = 0; i < count[(size_t)r * E + (size_t)e]; i++) order[at++] = next[e]++;
    free(next);
}

static int plan(void *self, int layer, int chunk, int *expert_first, const int *first)
{
    ExpertParallel *p = self;
    Route *route = route_of(p, layer, chunk);
    int ranks = group_size(p->ep), me = group_rank(p->ep);
    exchange_counts(p, first);
    route->rows = 0;
    for (int r = 0; r < ranks; r++) {
        int arrive = rows_between(p, r, me);
        route->sent[r] = rows_between(p, me, r) * p->width;
        route->received[r] = arrive * p->width;
        route->rows += arrive;
    }
    check_room(p, layer, route->rows);
    int *order = malloc(((size_t)route->rows + 1) * sizeof *order),
        *host_first = malloc(((size_t)p->local + 1) * sizeof(int));
    if (!order || !host_first) fatal("out of memory");
    sort_by_expert(p, order, host_first);
    p->kernels.upload(route->order, order, (size_t)route->rows * sizeof *order);
    p->kernels.upload(expert_first, host_first, (size_t)(p->local + 1) * sizeof *host_first);
    free(order);
    free(host_first);
    return route->rows;
}

/* --- the way there and back --- */

static void send(void *self, int layer, int chunk, const real *slots)
{
    ExpertParallel *p = self;
    const Route *route = route_of(p, layer, chunk);
    p->work[chunk] = comm_start_all_to_all_v(p->ep, arrived(p, chunk), route->received, slots, route->sent, COMM_REAL);
}

static void receive(void *self, int layer, int chunk, real *expert_rows)
{
    ExpertParallel *p = self;
    const Route *route = route_of(p, layer, chunk);
    comm_wait(p->work[chunk]);
    p->kernels.rows_to_slots(expert_rows, arrived(p, chunk), route->order, route->rows, 1, p->width);
}

static void send_back(void *self, int layer, int chunk, real *slots, const real *expert_rows)
{
    ExpertParallel *p = self;
    const Route *route = route_of(p, layer, chunk);
    real *leaving = arrived(p, chunk);
    p->kernels.rows_from_slots(leaving, NULL, expert_rows, route->order, NULL, route->rows, 1, p->width);
    p->work[chunk] = comm_start_all_to_all_v(p->ep, slots, route->sent, leaving, route->received, COMM_REAL);
}

static void receive_back(void *self, int layer, int chunk)
{
    ExpertParallel *p = self;
    (void)layer;
    comm_wait(p->work[chunk]);
}

ExpertSeam experts_seam(ExpertParallel *p)
{
    if (group_size(p->ep) == 1) return (ExpertSeam){0}; /* all experts are here */
    return (ExpertSeam){p, plan, send, receive, send_back, receive_back};
}
