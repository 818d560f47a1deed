#include "testing.h"

#include <fnmatch.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"
#include "base/error.h"
#include "kernels/kernels.h"
#include "kernels/memory.h"
#include "comm/watchdog.h"
#include "base/rng.h"
#include "observe/verify.h"

#if defined(PRECISION_FP64)
const double ROUNDING = 1e-12;
#else
const double ROUNDING = 1e-5;
#endif

enum { SECONDS = 100 }; /* after which a rank that waits says where */

static char token_file[64];

/* --- running --- */

#ifdef __SANITIZE_ADDRESS__
enum { CRASHES = 0 }; /* the sanitizer says more */
#else
enum { CRASHES = 3 };
#endif
enum { HANDLERS = 4 };
static const int crash[HANDLERS] = {SIGSEGV, SIGFPE, SIGILL, SIGBUS};
static struct sigaction at_crash[HANDLERS];
static const char *running; /* test */

static void on_crash(int number)
{
    char line[200];
    int length = snprintf(line, sizeof line, "rank %d: %s in test %s\n", comm_world_rank(), strsignal(number), running);
    if (length > 0) (void)!write(STDERR_FILENO, line, (size_t)length);
    _exit(1);
}

/* SIGBUS is the watchdog's. */
static void choose_handlers(void)
{
    for (int h = 0; h < HANDLERS; h++) {
        sigaction(crash[h], NULL, &at_crash[h]);
        if (h < CRASHES) at_crash[h] = (struct sigaction){.sa_handler = on_crash};
    }
}

/* cmocka calls this in place of each test. Its own handlers would go on with the next test on this rank alone, while
 * the other ranks wait for it in this one; so they are replaced. */
static void call_test(void **state)
{
    const struct CMUnitTest *test = *state;
    for (int h = 0; h < HANDLERS; h++) sigaction(crash[h], &at_crash[h], NULL);
    running = test->name;
    *state = test->initial_state;
    test->test_func(state);
}

/* Ranks above 0 make no report, but what the library says on stderr is seen. cmocka writes a report in XML to stdout
 * alone. */
static bool make_no_report(void)
{
    cmocka_set_message_output(CM_OUTPUT_XML);
    return freopen("/dev/null", "w", stdout) != NULL;
}

int testing_run(const char *name, const struct CMUnitTest *tests, size_t count, int argc, char **argv)
{
    comm_init(&argc, &argv);
    Kernels kernels = kernels_cpu();
    memory_use(&kernels);
    kernels_set_threads(1);
    const char *seconds = getenv("TEST_SECONDS"), *only = getenv("TEST");
    watchdog_start(seconds ? atof(seconds) : SECONDS);
    bool first = comm_world_rank() == 0;
    if (!first && !make_no_report()) return 1;
    choose_handlers();
    struct CMUnitTest chosen[count];
    size_t n = 0;
    for (size_t t = 0; t < count; t++) {
        CHECK(!tests[t].setup_func && !tests[t].teardown_func); /* call_test does not know them */
        if (!only || !*only || fnmatch(only, tests[t].name, 0) == 0)
            chosen[n++] = (struct CMUnitTest){tests[t].name, call_test, NULL, NULL, (void *)&tests[t]};
    }
    int64_t failed = n ? _cmocka_run_group_tests(name, chosen, n, NULL, NULL) : 0;
    comm_all_reduce(comm_control(), &failed, 1, COMM_INT64, COMM_MAX);
    if (first && *token_file) unlink(token_file);
    comm_finalize();
    return (int)failed;
}

void assert_together(bool good, const char *format, ...)
{
    enum { TEXT = 400 };
    char text[TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);

    Group *control = comm_control();
    int64_t first = good ? group_size(control) : group_rank(control);
    comm_all_reduce(control, &first, 1, COMM_INT64, COMM_MIN);
    if (first == group_size(control)) return;
    comm_broadcast(control, text, TEXT, COMM_BYTE, (int)first);
    if (comm_world_rank() == 0) fail_msg("on rank %d: %s", (int)first, text);
    fail(); /* without a message: fail_msg prints at once */
}

int testing_grid(void)
{
    const char *grid = getenv("GRID");
    return grid && atoi(grid) > 0 ? atoi(grid) : 1;
}

int random_int(Random *r, int low, int high)
{
    return low + (int)rng_below(r->seed, 7, r->next++, (uint64_t)(high - low + 1));
}

double random_real(Random *r)
{
    return (double)rng_normal(r->seed, 8, r->next++, 1);
}

real *random_array(Random *r, size_t n)
{
    real *x = malloc((n ? n : 1) * sizeof *x);
    CHECK(x);
    for (size_t i = 0; i < n; i++) x[i] = real_of(random_real(r));
    return x;
}

ModelConfig random_model(Random *r, int max_seq)
{
    int K = random_int(r, 1, 3);
    ModelConfig c = {.layers = random_int(r, 1, 3),
                     .width = random_int(r, 5, 20),
                     .heads = K * random_int(r, 1, 3),
                     .kv_heads = K,
                     .head_dim = 2 * random_int(r, 1, 4),
                     .ff = random_int(r, 1, 30),
                     .vocab = random_int(r, 5, 40),
                     .max_seq = max_seq,
                     .tied = random_int(r, 0, 1),
                     .qk_norm = random_int(r, 0, 1),
                     .theta = 1e4,
                     .eps = 1e-5,
                     .init_std = 0.3};
    snprintf(c.name, sizeof c.name, "random");
    return c;
}

void random_experts(Random *r, ModelConfig *c, int multiple)
{
    int E = multiple * random_int(r, 1, multiple > 4 ? 1 : 3);
    const int top_k[] = {1, 2, 3, E};
    int k = top_k[random_int(r, 0, 3)];
    c->ff = random_int(r, 0, 1) ? random_int(r, 1, 9) : 0;
    c->moe = (MoeConfig){.experts = E,
                         .top_k = k < E ? k : E,
                         .ff = random_int(r, 1, 12),
                         .router = random_int(r, 0, 2) ? ROUTER_SOFTMAX : ROUTER_SIGMOID,
                         .renormalize = random_int(r, 0, 1),
                         .balance = (BalanceKind)random_int(r, BALANCE_NONE, BALANCE_BIAS),
                         .aux_coef = 0.3,
                         .z_coef = random_int(r, 0, 1) ? 0.01 : 0,
                         .bias_rate = 0.02};
}

Rows random_rows(Random *r, int sequences, int seq, int vocab, unsigned flags)
{
    Rows rows = rows_create_host(sequences * seq);
    for (int b = 0; b < sequences; b++) {
        int begin = b * seq, window = random_int(r, 1, seq);
        int keep = flags & ROWS_MASKED ? random_int(r, 0, 4) : 4; /* of four labels */
        for (int t = 0; t < seq; t++) {
            int i = b * seq + t;
            if ((flags & ROWS_DOCUMENTS) && t > 0 && random_int(r, 0, 3) == 0) begin = i;
            rows.token[i] = random_int(r, 0, vocab - 1);
            rows.label[i] = random_int(r, 0, 3) < keep ? random_int(r, 0, vocab - 1) : -1;
            rows.id[i] = i;
            rows.position[i] = i - begin;
            rows.lo[i] = begin;
            if ((flags & ROWS_WINDOW) && i + 1 - window > begin) rows.lo[i] = i + 1 - window;
            rows.hi[i] = i + 1;
        }
    }
    return rows;
}

double error_of(const acc *a, const acc *b, size_t n)
{
    double difference, largest;
    verify_compare(a, b, n, &difference, &largest);
    return verify_error(difference, largest, 0);
}

const char *testing_token_file(int vocab, int count)
{
    if (comm_world_rank() == 0) {
        snprintf(token_file, sizeof token_file, "/tmp/tiny-tokens-%d.bin", (int)getpid());
        FILE *f = fopen(token_file, "wb");
        CHECK(f);
        int32_t header[256] = {20240520, 1, count};
        fwrite(header, sizeof header, 1, f);
        Random random = {.seed = 11};
        for (int i = 0; i < count; i++) {
            uint16_t token = (uint16_t)random_int(&random, 0, vocab - 1);
            fwrite(&token, sizeof token, 1, f);
        }
        fclose(f);
    }
    comm_broadcast(comm_control(), token_file, sizeof token_file, COMM_BYTE, 0);
    return token_file;
}

double loss_of(Model *m, const Rows *rows)
{
    m->kernels.fill(m->loss_sum, 0, sizeof *m->loss_sum);
    model_forward(m, m->activations, rows);
    model_loss(m, m->activations, 0.1);
    return model_read_loss(m);
}
