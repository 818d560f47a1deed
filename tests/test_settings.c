/* ranks: 1  builds: fp64
 *
 * Flags of every trainer that config_finish checks against each other and against the host. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "settings/config.h"
#include "testing.h"

/* Reads flags, separated by spaces. Returns NULL or the first complaint. */
static const char *finish(const char *flags)
{
    Config config = {0};
    OptionTable table = config_options(&config);
    char words[400], program[] = "program", *argv[32] = {program};
    int argc = 1, help;
    CHECK(snprintf(words, sizeof words, "--device cpu %s", flags) < (int)sizeof words);
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    config.lr = -1;
    const char *complaint = options_parse(&table, 1, argc, argv, &help);
    return complaint ? complaint : config_finish(&config, 1, 0);
}

static void expect(const char *flags, const char *want)
{
    const char *complaint = finish(flags);
    if (!complaint || !strstr(complaint, want) || strchr(complaint, '\n'))
        fail_msg("%s: got %s, want %s", flags, complaint ? complaint : "no complaint", want);
}

static void accepted(const char *flags)
{
    const char *complaint = finish(flags);
    if (complaint) fail_msg("%s: %s", flags, complaint);
}

static void empty_values(void **state)
{
    (void)state;
    static const char *const flags[] = {"model", "data", "kernel", "autotune", "log", "trace", "dump", "bug"};
    for (size_t f = 0; f < sizeof flags / sizeof flags[0]; f++) {
        char flag[32], want[48];
        snprintf(flag, sizeof flag, "--%s=", flags[f]);
        snprintf(want, sizeof want, "--%s \"\": must not be empty; give ", flags[f]);
        expect(flag, want);
    }
    accepted("--sample 3 --prompt=");
    expect("--prompt a", "--prompt a: goes with --sample");
    accepted("--model nano --pack --document 255");
    expect("--model nano --pack --document 256", "--document 256: must be a token of the model, 0 to 255");
    expect("--optimizer=", "--optimizer \"\": must be one of adamw|sgd");
    expect("--kernel ,", "--kernel ,: a choice is empty; give ENTRY=VARIANT,...");
    expect("--kernel ,linear=naive", "--kernel ,linear=naive: a choice is empty");
    expect("--kernel linear=naive,", "--kernel linear=naive,: a choice is empty");
    expect("--kernel linear=naive,,attention=naive", "a choice is empty");
    expect("--kernel linear=naive,attention=naive,linear=blas", "chooses twice for linear");
    accepted("--kernel linear=naive,attention=naive");
}

/* Terabytes of rows are refused before anything is allocated; --show draws them. */
static void rows_that_no_host_holds(void **state)
{
    (void)state;
    const char *flags = "--model 1b --batch 268435455 --seq 1",
               *want = "--batch 268435455: with --seq 1 and --accumulate 1 "
                       "a rank's rows need more than ";
    expect(flags, want);
    accepted("--model 1b --batch 268435455 --seq 1 --show memory");
    accepted("--model 1b --batch 4 --seq 1024");
    expect("--model 1b --batch 1 --seq 268435455", "--batch 1: with --seq 268435455 and --accumulate 1");
    expect("--model 1b --batch 268435456 --seq 1", "--batch 268435456: times --seq 1 must be at most 268435455");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(empty_values),
    cmocka_unit_test(rows_that_no_host_holds),
};

TESTING_MAIN(tests)
