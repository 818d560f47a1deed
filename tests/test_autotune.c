/* ranks: 2  builds: fp64
 *
 * The auto-tuner, with kernels of known speed. Every rank uses the faster kernel, the file keeps the choice, and the
 * tuner does not change an entry that --kernel names. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tune/autotune.h"
#include "comm/comm.h"
#include "base/error.h"
#include "model/model_config.h"
#include "settings/presets.h"
#include "testing.h"

static Kernels plain;
static int slow_calls, fast_calls;

static void slow_forward(real *y, const real *x, const real *w, int n, int in, int out)
{
    slow_calls++;
    usleep(10000);
    plain.linear_forward(y, x, w, n, in, out);
}

static void fast_forward(real *y, const real *x, const real *w, int n, int in, int out)
{
    fast_calls++;
    plain.linear_forward(y, x, w, n, in, out);
}

static void use_slow(Kernels *k)
{
    k->linear_forward = slow_forward;
}

static void use_fast(Kernels *k)
{
    k->linear_forward = fast_forward;
}

static const Variant variants[] = {{"linear=fast", use_fast}, {"alone=only", use_slow}, {"linear=slow", use_slow}};

static char path[64];

/* A backend with a fast and a slow kernel for linear. The slow one is the default. */
static Kernels two_speeds(void)
{
    Kernels k = plain;
    k.variants = variants;
    k.variant_count = 3;
    use_slow(&k);
    slow_calls = fast_calls = 0;
    return k;
}

/* Measures, and saves what was measured as trainer_begin does. */
static const char *tune(Kernels *k, int rows, const char *chosen, const char *file)
{
    const char *complaint = autotune(k, &preset_find("nano")->model, rows, 48, 1, chosen, file);
    if (!complaint && comm_world_rank() == 0) autotune_save(file);
    return complaint;
}

static bool takes_fast(const char *chosen, const char *file, const char **complaint)
{
    Kernels k = two_speeds();
    *complaint = tune(&k, 96, chosen, file);
    return k.linear_forward == fast_forward;
}

static void takes_the_faster(void **state)
{
    (void)state;
    const char *complaint;
    bool first = comm_world_rank() == 0;
    bool fast = takes_fast("", path, &complaint);
    assert_together(fast && !complaint, "the slow kernel was taken");
    assert_together((slow_calls > 0 && fast_calls > 0) == first, "measured %d and %d times", slow_calls, fast_calls);
}

static void remembers(void **state)
{
    (void)state;
    const char *complaint;
    bool fast = takes_fast("", path, &complaint);
    assert_together(fast && !complaint, "the cache was not believed");
    assert_together(slow_calls == 0 && fast_calls == 0, "measured again");

    Kernels k = two_speeds(); /* the tuner measures other shapes */
    complaint = tune(&k, 48, "", path);
    assert_together(k.linear_forward == fast_forward && !complaint, "other rows");
    assert_together((slow_calls > 0) == (comm_world_rank() == 0), "other rows were not measured");
}

/* The tuner ignores a choice in the file that names an unknown kernel. It uses the slow kernel if the file names it. */
static void reads_the_cache(void **state)
{
    (void)state;
    const char *const names[] = {"linear=gone", "linear=slow"};
    for (int n = 0; n < 2; n++) {
        if (comm_world_rank() == 0) {
            char line[500];
            FILE *f = fopen(path, "r");
            CHECK(f && fgets(line, sizeof line, f) &&
                  fgets(line, sizeof line, f)); /* skip the header, keep the first choice */
            fclose(f);
            char *value = strstr(line, " = ");
            CHECK(value);
            *value = '\0';
            f = fopen(path, "w");
            CHECK(f);
            fprintf(f, "# kernels chosen by --autotune\n%s = %s\n", line, names[n]);
            fclose(f);
        }
        comm_barrier(comm_control());
        const char *complaint;
        bool fast = takes_fast("", path, &complaint);
        assert_together(!complaint && fast == (n == 0), "with %s in the cache", names[n]);
        comm_barrier(comm_control());
    }
}

static void leaves_alone_what_is_chosen(void **state)
{
    (void)state;
    const char *complaint;
    char other[80];
    snprintf(other, sizeof other, "%s-other", path); /* a new file */
    bool fast = takes_fast("attention=naive,linear=slow", other, &complaint);
    assert_together(!fast && !complaint && slow_calls + fast_calls == 0, "--kernel was overruled");
    if (comm_world_rank() == 0) unlink(other);
}

/* Until it is told to save: the run may be refused. */
static void writes_nothing(void **state)
{
    (void)state;
    char unborn[80];
    snprintf(unborn, sizeof unborn, "%s-unborn", path);
    Kernels k = two_speeds();
    const char *complaint = autotune(&k, &preset_find("nano")->model, 96, 48, 1, "", unborn);
    assert_together(!complaint && access(unborn, F_OK) != 0, "a file was written");
    if (comm_world_rank() == 0) autotune_save(unborn);
    comm_barrier(comm_control());
    complaint = autotune(&k, &preset_find("nano")->model, 96, 48, 1, "", unborn);
    assert_together(!complaint && access(unborn, F_OK) == 0, "nothing was saved");
    comm_barrier(comm_control());
    if (comm_world_rank() == 0) unlink(unborn);
}

static void says_what_is_no_file_of_its_own(void **state)
{
    (void)state;
    const char *complaint;
    char foreign[80];
    snprintf(foreign, sizeof foreign, "%s-letter", path);
    if (comm_world_rank() == 0) {
        FILE *f = fopen(foreign, "w");
        CHECK(f && fputs("Dear all,\n", f) >= 0 && fclose(f) == 0);
    }
    comm_barrier(comm_control());
    takes_fast("", foreign, &complaint);
    assert_together((complaint != NULL) == (comm_world_rank() == 0), "no complaint about another file");
    if (comm_world_rank() == 0) unlink(foreign);
}

/* The tuner repairs its file if a run was interrupted while it wrote, and makes it again if it was deleted. */
static void repairs_the_file(void **state)
{
    (void)state;
    const char *complaint, *const damage[] = {"head -c -1 %s > %s.x; mv %s.x %s",
                                              "printf '# kernels chosen by --autotune' > %s", "rm %s"};
    for (int d = 0; d < 3; d++) {
        if (comm_world_rank() == 0) {
            char command[400];
            snprintf(command, sizeof command, damage[d], path, path, path, path);
            CHECK(system(command) == 0);
        }
        comm_barrier(comm_control());
        Kernels k = two_speeds();
        complaint = tune(&k, 48 * (d + 5), "", path);
        assert_together(!complaint && k.linear_forward == fast_forward, "%s", damage[d]);
        complaint = tune(&k, 48 * (d + 5), "", path);
        assert_together(!complaint, "%s: not a file of --autotune any more", damage[d]);
    }
}

/* With the real CPU backend the tuner leaves kernels in the table. */
static void of_this_machine(void **state)
{
    (void)state;
    Kernels k = plain;
    const char *complaint = tune(&k, 96, "", path);
    assert_together(!complaint && k.linear_forward && k.attention_backward, "no kernels");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(takes_the_faster), cmocka_unit_test(remembers),
    cmocka_unit_test(reads_the_cache),  cmocka_unit_test(leaves_alone_what_is_chosen),
    cmocka_unit_test(writes_nothing),   cmocka_unit_test(says_what_is_no_file_of_its_own),
    cmocka_unit_test(repairs_the_file), cmocka_unit_test(of_this_machine),
};

int main(int argc, char **argv)
{
    plain = kernels_cpu();
    snprintf(path, sizeof path, "/tmp/tiny-autotune-%d", (int)getppid());
    unlink(path);
    int failed = testing_run("test_autotune", tests, sizeof tests / sizeof tests[0], argc, argv);
    unlink(path);
    return failed;
}
