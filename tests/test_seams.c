/* ranks: 1  builds: fp64 fp64-debug fp32-san
 *
 * The seams: a scheme that changes nothing gives the numbers of empty seams, and its hooks are called as seams.h
 * says. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"
#include "testing.h"

/* A scheme for this test: it notes which hooks are called, and copies the values that pass through the feature seam. */
typedef struct {
    char calls[512];
    real *buffer[4];
    int entered, left, vocab;
    Kernels kernels;
} Recorder;

static void note(Recorder *rec, char hook, int unit)
{
    size_t n = strlen(rec->calls);
    snprintf(rec->calls + n, sizeof rec->calls - n, "%c%d ", hook, unit);
}

static void note_before_forward(void *self, int unit)
{
    note(self, 'f', unit);
}

static void note_after_forward(void *self, int unit)
{
    note(self, 'F', unit);
}

static void note_before_backward(void *self, int unit)
{
    note(self, 'b', unit);
}

static void note_after_backward(void *self, int unit)
{
    note(self, 'B', unit);
}

static const real *copy(real *to, const real *from, int rows, int width)
{
    memcpy(to, from, (size_t)rows * (size_t)width * sizeof *to);
    return to;
}

/* Copies from a scratch buffer and then fills the scratch with NaN: the model must not read it again. */
static const real *move(real *to, real *from, int rows, int width)
{
    copy(to, from, rows, width);
    memset(from, 0xff, (size_t)rows * (size_t)width * sizeof *from); /* NaN */
    return to;
}

static void plain_column(void *self, real *y, const real *x, Linear l, int rows)
{
    Recorder *rec = self;
    rec->entered++;
    rec->kernels.linear_forward(y, x, l.w, rows, l.in, l.out);
}

static const real *plain_column_backward(void *self, real *dx, const real *dy, const real *x, Linear l, int rows,
                                         unsigned gradients)
{
    Recorder *rec = self;
    rec->entered++;
    assert_int_equal(gradients, GRADIENTS);
    rec->kernels.linear_backward_weight(l.dw, dy, x, rows, l.in, l.out);
    rec->kernels.linear_backward_input(dx, dy, l.w, rows, l.in, l.out);
    return move(rec->buffer[0], dx, rows, l.in);
}

static const real *plain_row(void *self, real *y, const real *x, Linear l, int rows)
{
    Recorder *rec = self;
    rec->left++;
    rec->kernels.linear_forward(y, x, l.w, rows, l.in, l.out);
    return move(rec->buffer[1], y, rows, l.out);
}

static void plain_row_backward(void *self, real *dx, const real *dy, const real *x, Linear l, int rows,
                               unsigned gradients)
{
    Recorder *rec = self;
    rec->left++;
    assert_int_equal(gradients, GRADIENTS);
    rec->kernels.linear_backward_weight(l.dw, dy, x, rows, l.in, l.out);
    rec->kernels.linear_backward_input(dx, dy, l.w, rows, l.in, l.out);
}

static const real *copy_embedding(void *self, real *y, int rows, int width)
{
    return move(((Recorder *)self)->buffer[2], y, rows, width);
}

static const real *copy_embedding_backward(void *self, const real *dy, int rows, int width)
{
    return copy(((Recorder *)self)->buffer[3], dy, rows, width);
}

static void plain_loss(void *self, acc *loss, real *logits, const int *label, double scale, int rows)
{
    Recorder *rec = self;
    rec->kernels.cross_entropy(loss, logits, label, scale, rows, rec->vocab);
}

/* Attention in two folds, first over the early keys and then over the late ones, as a ring of two ranks calls it. */
typedef struct {
    Model *model;
    acc *fold, *dk, *dv;
    int forward, backward;
} TwoFolds;

static AttentionShape fold_shape(const Model *m, const Rows *rows, int part)
{
    const ModelConfig *c = &m->config;
    size_t stride = (size_t)(c->heads + 2 * c->kv_heads) * c->head_dim;
    int half = rows->count / 2;
    return (AttentionShape){c->heads,
                            c->kv_heads,
                            c->head_dim,
                            rows->count,
                            part ? rows->count - half : half,
                            rows->lo,
                            rows->hi,
                            rows->id + (part ? half : 0),
                            stride,
                            stride,
                            part ? ATTENTION_LAST : ATTENTION_FIRST};
}

static void folds_forward(void *self, real *out, acc *lse, const real *qkv, const Rows *rows)
{
    TwoFolds *t = self;
    t->forward++;
    const ModelConfig *c = &t->model->config;
    const real *k = qkv + c->heads * c->head_dim, *v = k + c->kv_heads * c->head_dim;
    for (int part = 0; part < 2; part++) {
        AttentionShape s = fold_shape(t->model, rows, part);
        size_t at = part ? (size_t)(rows->count / 2) * s.kv_stride : 0;
        t->model->kernels.attention_forward(out, t->fold, lse, qkv, k + at, v + at, s);
    }
}

static void folds_backward(void *self, real *dqkv, acc *dot, const real *dout, const real *out, const acc *lse,
                           const real *qkv, const Rows *rows)
{
    TwoFolds *t = self;
    t->backward++;
    const ModelConfig *c = &t->model->config;
    size_t q_width = (size_t)c->heads * c->head_dim, kv_width = (size_t)c->kv_heads * c->head_dim;
    const real *k = qkv + q_width, *v = k + kv_width;
    memset(t->dk, 0, rows->count * kv_width * sizeof *t->dk);
    memset(t->dv, 0, rows->count * kv_width * sizeof *t->dv);
    size_t stride = 0;
    for (int part = 0; part < 2; part++) {
        AttentionShape s = fold_shape(t->model, rows, part);
        int first = part ? rows->count / 2 : 0;
        stride = s.kv_stride;
        t->model->kernels.attention_backward(dqkv, t->fold, NULL, NULL, t->dk + first * kv_width,
                                             t->dv + first * kv_width, dot, dout, out, lse, qkv, k + first * stride,
                                             v + first * stride, s);
    }
    for (int i = 0; i < rows->count; i++)
        for (size_t d = 0; d < kv_width; d++) {
            dqkv[i * stride + q_width + d] = (real)t->dk[i * kv_width + d];
            dqkv[i * stride + q_width + kv_width + d] = (real)t->dv[i * kv_width + d];
        }
}

/* Seams that are all filled, but change nothing, give the numbers of empty seams. */
static void full_seams_change_nothing(void **state)
{
    (void)state;
    Random r = {.seed = 24};
    Kernels kernels = kernels_cpu();
    ModelConfig c = random_model(&r, 9);
    c.layers = 2;
    Rows rows = random_rows(&r, 3, 9, c.vocab, ROWS_DOCUMENTS | ROWS_MASKED);
    Model *m = model_create(&c, &kernels, rows.count);
    params_init(&m->params, &kernels, 5);
    model_zero_grads(m);
    double want_loss = loss_of(m, &rows);
    model_backward(m, m->activations);
    acc *want = malloc(m->params.count * sizeof *want);
    memcpy(want, m->params.grads, m->params.count * sizeof *want);

    Recorder recorder = {.kernels = kernels, .vocab = c.vocab};
    size_t wide = (size_t)rows.count * 64;
    for (int b = 0; b < 4; b++) recorder.buffer[b] = malloc(wide * sizeof(real));
    TwoFolds folds = {m, malloc(wide * sizeof(acc)), malloc(wide * sizeof(acc)), malloc(wide * sizeof(acc)), 0, 0};
    assert_true(c.width <= 64 && c.heads * c.head_dim <= 64 * 2);
    folds.fold = realloc(folds.fold, 2 * wide * sizeof(acc));
    m->seams = (Seams){
        .parameters = {&recorder, note_before_forward, note_after_forward, note_before_backward, note_after_backward},
        .features = {&recorder, plain_column, plain_column_backward, plain_row, plain_row_backward, copy_embedding,
                     copy_embedding_backward, plain_loss, NULL},
        .sequence = {&folds, folds_forward, folds_backward},
    };
    model_zero_grads(m);
    double loss = loss_of(m, &rows);
    assert_string_equal(recorder.calls, "f0 f1 F1 f2 F2 F0 ");
    recorder.calls[0] = '\0';
    model_backward(m, m->activations);
    assert_string_equal(recorder.calls, "b0 b2 B2 b1 B1 B0 ");
    assert_int_equal(recorder.entered, 2 * (2 * 2 + 1)); /* both passes: two in each layer, and the head */
    assert_int_equal(recorder.left, 2 * 2 * 2);
    assert_true(folds.forward == 2 && folds.backward == 2);
    assert_true(fabs(loss - want_loss) <= ROUNDING * want_loss);
    assert_true(error_of(m->params.grads, want, m->params.count) <= ROUNDING);

    for (int b = 0; b < 4; b++) free(recorder.buffer[b]);
    free(folds.fold), free(folds.dk), free(folds.dv), free(want);
    model_free(m);
    rows_free_host(&rows);
}

/* A chain calls outer, inner before a unit, and inner, outer after it. It leaves out a hook that is missing. */
static void chains_nest(void **state)
{
    (void)state;
    Recorder recorder = {0};
    ParameterSeam outer = {&recorder, note_before_forward, note_after_forward, note_before_backward,
                           note_after_backward};
    /* the same hooks in another order, so that each call says which seam made it */
    ParameterSeam inner = {&recorder, note_after_backward, note_before_backward, note_after_forward,
                           note_before_forward};
    ParameterSeam little = {.self = &recorder, .after_backward = note_after_forward};
    SeamChain chain[2];
    ParameterSeam two = seam_chain(&chain[0], inner, outer), three = seam_chain(&chain[1], little, two);
    three.before_forward(three.self, 1);
    assert_string_equal(recorder.calls, "f1 B1 ");
    recorder.calls[0] = '\0';
    three.after_forward(three.self, 1);
    assert_string_equal(recorder.calls, "b1 F1 ");
    recorder.calls[0] = '\0';
    three.before_backward(three.self, 1);
    assert_string_equal(recorder.calls, "b1 F1 ");
    recorder.calls[0] = '\0';
    three.after_backward(three.self, 1);
    assert_string_equal(recorder.calls, "F1 f1 B1 ");
}

/* The last micro-step reduces. With reduces_each every micro-step does. */
static void micro_steps_reduce(void **state)
{
    (void)state;
    for (int each = 0; each < 2; each++)
        for (int count = 1; count <= 3; count++)
            for (int index = 0; index < count; index++) {
                MicroStep m = {index, count, each};
                assert_true(backward_reduces(&m) == (each || index == count - 1));
                assert_true(backward_is_last(&m) == (index == count - 1));
            }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(chains_nest),
    cmocka_unit_test(micro_steps_reduce),
    cmocka_unit_test(full_seams_change_nothing),
};
TESTING_MAIN(tests)
