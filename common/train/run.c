#define _GNU_SOURCE /* sched_getaffinity */
#include "train/run.h"

#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bug.h"
#include "base/error.h"
#include "comm/agree.h"
#include "comm/watchdog.h"
#include "base/rng.h"
#include "observe/trace_file.h"

static int stepping;

/* [all ranks] */
static bool same_flags(const OptionTable *tables, int count)
{
    uint64_t hash = 0;
    for (int t = 0; t < count; t++)
        for (int r = 0; r < tables[t].count; r++) {
            char *text = options_value(&tables[t], r);
            hash = hash * 31 + rng_stream(text);
            free(text);
        }
    return comm_same_bits(comm_control(), &hash, sizeof hash);
}

/* Opens /dev/null in place of each standard stream that the caller has closed. Otherwise a file of the run would get
 * its descriptor, and what is printed would go into that file. */
static void open_streams(void)
{
    for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; stream++)
        if (fcntl(stream, F_GETFD) < 0 && open("/dev/null", O_RDWR) != stream)
            fatal("/dev/null: cannot be opened in place of standard stream %d, which is closed", stream);
}

void run_start(int argc, char **argv, const char *program, const OptionTable *tables, int count, Config *config)
{
    open_streams();
    setvbuf(stdout, NULL, _IOLBF, 0);
    config->lr = -1; /* not given */
    int help;
    const char *complaint = options_parse(tables, count, argc, argv, &help);
    stepping = (int)config->step;
    watchdog_start(stepping ? 0 : config->timeout); /* before MPI: its first call is the first that can hang */
    comm_init(&argc, &argv);
    agree(complaint);
    agree(same_flags(tables, count) ? NULL : complain("the ranks were started with different flags"));
    if (help) {
        if (comm_world_rank() == 0) options_help(tables, count, program);
        exit(run_finish(0));
    }
    bool tells = strcmp(config->bug, "list") == 0 || strncmp(config->bug, "reveal:", 7) == 0;
    if (tells) {
        agree(comm_world_rank() == 0 ? bug_set(config->bug) : NULL);
        exit(run_finish(0));
    }
    agree(*config->bug ? bug_set(config->bug) : NULL);
}

/* Cores that this process may use, and cores of the machine. */
static void count_cores(int *mine, int *machine)
{
    cpu_set_t set;
    *machine = (int)sysconf(_SC_NPROCESSORS_ONLN);
    *mine = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : *machine;
}

/* The threads for this rank's kernels: the machine's cores divided by the ranks on it, but at most the cores that the
 * launcher bound this rank to. OMP_NUM_THREADS overrides that. Sets *bound if the launcher gave the rank fewer cores
 * than its share. */
static int choose_threads(int *bound)
{
    int mine, machine;
    count_cores(&mine, &machine);
    int share = machine / comm_local_ranks();
    int threads = share < mine ? share : mine;
    const char *given = getenv("OMP_NUM_THREADS");
    if (given && atoi(given) > 0) threads = atoi(given) < machine ? atoi(given) : machine;
    *bound = !given && mine < share;
    return threads > 0 ? threads : 1;
}

int run_use_threads(void)
{
    int bound;
    kernels_set_threads(choose_threads(&bound));
    return bound;
}

void run_begin(Config *c, const Mesh *mesh, size_t parameters, int64_t tokens)
{
    int bound = run_use_threads();
    agree(*c->trace ? trace_file_open(c->trace) : NULL);
    trace_file_start();
    if (group_rank(mesh->world) != 0) return;
    printf("model %s: %zu parameters, %s on %s (%s)\n", c->architecture.name, parameters, PRECISION_NAME,
           c->kernels.backend, c->kernels.describe());
    const MoeConfig *moe = &c->architecture.moe;
    if (moe->experts)
        printf("experts: %d in each layer, a row goes to %d; %zu parameters multiply a row\n", moe->experts, moe->top_k,
               model_matmul_weights(&c->architecture));
    printf("data %s: %lld tokens; a step is %ld sequences of %ld in %ld micro-step%s\n", c->data, (long long)tokens,
           c->batch, c->seq, c->accumulate, c->accumulate > 1 ? "s" : "");
    printf("mesh");
    for (int a = 0; a < AXES; a++)
        if (mesh->shape.size[a] > 1) printf(" %s=%d", axis_name((Axis)a), mesh->shape.size[a]);
    printf(": %d rank%s\n", group_size(mesh->world),
           group_size(mesh->world) > 1 ? "s" : " (the single-device program)");
    if (c->note) printf("note: %s\n", c->note);
    if (bound)
        printf("note: the launcher bound this rank to fewer cores than its share; mpirun --bind-to none frees it\n");
}

int run_finish(int status)
{
    trace_file_write();
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "rank %d: standard output: not all could be written\n", comm_world_rank());
        status = status ? status : 1;
    }
    comm_finalize();
    return status;
}

void run_pause(const char *format, ...)
{
    enum { LINE = 160 };
    if (!stepping) return;
    Group *control = comm_control();
    char line[LINE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);

    char *lines = malloc((size_t)group_size(control) * LINE);
    if (!lines) fatal("out of memory");
    comm_all_gather(control, lines, line, LINE, COMM_BYTE);
    if (group_rank(control) == 0) {
        for (int r = 0; r < group_size(control); r++) printf("  rank %d: %s\n", r, lines + r * LINE);
        printf("  [Enter] ");
        fflush(stdout);
        int c = getchar();
        while (c != '\n' && c != EOF) c = getchar();
        if (!isatty(STDIN_FILENO)) printf("\n"); /* the terminal has not echoed it */
    }
    free(lines);
    comm_barrier(control);
}
