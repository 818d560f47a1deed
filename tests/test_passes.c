/* ranks: 2  builds: fp64 fp64-debug fp32-san
 *
 * The passes in parts, as a pipeline schedule needs them: layers in ranges, several micro-steps in flight, the
 * gradients of the weights later than those of the inputs. Each way of taking them gives the numbers of the whole
 * passes, to the bit. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "case.h"
#include "kernels/memory.h"
#include "model/model.h"
#include "testing.h"

enum { SEQ = 8, MICRO_STEPS = 3 };

typedef struct {
    Model *model;
    TensorParallel tensor;
    SeamChain chain;
    Rows rows[MICRO_STEPS];
} Problem;

/* A model of three layers on both ranks: whole (tp 1, on each rank alone), or split over them. */
static void create(Problem *p, int tp, int sp, bool recompute)
{
    static Group *pair, *kv;
    Random r = {.seed = 61};
    Kernels kernels = kernels_cpu();
    ModelConfig c = random_model(&r, SEQ);
    c.layers = 3;
    c.heads = 4, c.kv_heads = 1, c.ff = 14, c.qk_norm = true;
    for (int m = 0; m < MICRO_STEPS; m++) p->rows[m] = random_rows(&r, 2, SEQ, c.vocab, ROWS_DOCUMENTS | ROWS_MASKED);
    if (!pair) {
        pair = group_split(comm_world(), 0, "tp");
        kv = tensor_kv_group(pair, &c);
    }
    Placement placement = {.tp = tp, .tp_rank = tp > 1 ? group_rank(pair) : 0};
    ModelPart part = {.placement = placement, .stream_parts = sp ? tp : 1, .recompute = recompute};
    p->model = model_create_part(&c, &kernels, 2 * SEQ, part);
    params_init(&p->model->params, &kernels, 9);
    if (tp == 1) return;
    TensorOptions options = {.tp = tp, .sp = sp, .overlap_chunks = 1};
    p->tensor = tensor_create(p->model, pair, kv, options, 2 * SEQ);
    p->model->seams.features = tensor_seam(&p->tensor);
}

static void destroy(Problem *p, int tp)
{
    for (int m = 0; m < MICRO_STEPS; m++) rows_free_host(&p->rows[m]);
    model_free(p->model);
    if (tp > 1) tensor_free(&p->tensor);
}

/* One micro-step after the other, whole passes. */
static void plainly(Problem *p)
{
    Model *m = p->model;
    for (int i = 0; i < MICRO_STEPS; i++) {
        model_begin(m, i, MICRO_STEPS);
        model_forward(m, m->activations, &p->rows[i]);
        model_loss(m, m->activations, 0.1);
        model_backward(m, m->activations);
    }
}

/* Layers one by one and in ranges. */
static void in_ranges(Problem *p)
{
    Model *m = p->model;
    Activations *a = m->activations;
    for (int i = 0; i < MICRO_STEPS; i++) {
        int cut = i + 1;
        model_begin(m, i, MICRO_STEPS);
        model_embed(m, a, &p->rows[i]);
        model_forward_layers(m, a, 0, cut);
        model_forward_layers(m, a, cut, m->config.layers);
        model_forward_head(m, a);
        model_loss(m, a, 0.1);
        model_backward_head(m, a);
        model_backward_layers(m, a, cut, m->config.layers);
        model_backward_layers(m, a, 0, cut);
        model_backward_embed(m, a);
    }
}

/* All forward passes first, then the backward passes in the same order: three micro-steps are in flight. */
static void all_in_flight(Problem *p)
{
    Model *m = p->model;
    Activations *a[MICRO_STEPS] = {m->activations, activations_create(m), activations_create(m)};
    for (int i = 0; i < MICRO_STEPS; i++) {
        model_begin(m, i, MICRO_STEPS);
        model_forward(m, a[i], &p->rows[i]);
        model_loss(m, a[i], 0.1);
    }
    for (int i = 0; i < MICRO_STEPS; i++) {
        model_begin(m, i, MICRO_STEPS);
        model_backward(m, a[i]);
    }
    for (int i = 1; i < MICRO_STEPS; i++) activations_free(m, a[i]);
}

/* The gradients of all layers' weights after those of all inputs. */
static void weights_later(Problem *p)
{
    Model *m = p->model;
    Activations *a = m->activations;
    int layers = m->config.layers;
    LayerGrads later[8];
    for (int l = 0; l < layers; l++) later[l] = layer_grads_create(m);
    for (int i = 0; i < MICRO_STEPS; i++) {
        model_begin(m, i, MICRO_STEPS);
        model_forward(m, a, &p->rows[i]);
        model_loss(m, a, 0.1);
        model_backward_head(m, a);
        for (int l = layers - 1; l >= 0; l--) layer_backward_inputs(m, a, l, &later[l]);
        model_backward_embed(m, a);
        for (int l = 0; l < layers; l++) layer_backward_weights(m, a, l, &later[l]);
    }
    for (int l = 0; l < layers; l++) layer_grads_free(&later[l]);
}

typedef void Way(Problem *p);

static void run(Way *way, int tp, int sp, bool recompute, acc *grads, double *loss, size_t *count)
{
    Problem p = {0};
    size_t held = memory_held(MEMORY_ACTIVATIONS);
    create(&p, tp, sp, recompute);
    model_zero_grads(p.model);
    way(&p);
    *loss = model_read_loss(p.model);
    *count = p.model->params.count;
    memcpy(grads, p.model->params.grads, *count * sizeof *grads);
    destroy(&p, tp);
    CHECK(memory_held(MEMORY_ACTIVATIONS) == held);
}

static void parts_make_the_whole(void **state)
{
    (void)state;
    enum { ELEMENTS_MAX = 20000 };
    static acc want[ELEMENTS_MAX], got[ELEMENTS_MAX];
    Way *const ways[] = {in_ranges, all_in_flight, weights_later};
    static const char *const names[] = {"in ranges", "all in flight", "weights later"};
    const int splits[][2] = {{1, 0}, {2, 0}, {2, 1}}; /* tp, sp */
    for (int s = 0; s < 3; s++)
        for (int recompute = 0; recompute < 2; recompute++)
            for (int w = 0; w < (recompute ? 2 : 3); w++) {
                double loss, want_loss;
                size_t count, want_count;
                run(plainly, splits[s][0], splits[s][1], recompute, want, &want_loss, &want_count);
                run(ways[w], splits[s][0], splits[s][1], recompute, got, &loss, &count);
                CHECK(count <= ELEMENTS_MAX && count == want_count);
                assert_together(loss == want_loss && memcmp(want, got, count * sizeof *want) == 0,
                                "%s, tp %d, sp %d, recompute %d: other bits", names[w], splits[s][0], splits[s][1],
                                recompute);
            }
}

/* What the backward pass of the inputs keeps of one layer for that of the weights: the gradients of the four products'
 * outputs. Those of the stream are of this rank's rows alone. */
static void bytes_of_layer_grads(void **state)
{
    (void)state;
    const int splits[][2] = {{1, 0}, {2, 0}, {2, 1}}; /* tp, sp */
    for (int s = 0; s < 3; s++) {
        int tp = splits[s][0], sp = splits[s][1];
        Problem p = {0};
        create(&p, tp, sp, false);
        size_t rows = 2 * SEQ, stream = sp ? rows / 2 : rows, width = (size_t)p.model->whole.width;
        size_t head = (size_t)p.model->whole.head_dim, heads = 4 / (size_t)tp, kv_heads = 1, ff = 14 / (size_t)tp;
        size_t want = (2 * stream * width + rows * 2 * ff + rows * (heads + 2 * kv_heads) * head) * sizeof(real);
        size_t before = memory_held(MEMORY_ACTIVATIONS), total = memory_total();
        LayerGrads later = layer_grads_create(p.model);
        size_t held = memory_held(MEMORY_ACTIVATIONS) - before, all = memory_total() - total;
        assert_together(held == want && all == want, "tp %d, sp %d: %zu bytes, formula %zu", tp, sp, held, want);
        layer_grads_free(&later);
        assert_together(memory_total() == total, "tp %d, sp %d: not all is freed", tp, sp);
        destroy(&p, tp);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(parts_make_the_whole),
    cmocka_unit_test(bytes_of_layer_grads),
};

TESTING_MAIN(tests)
