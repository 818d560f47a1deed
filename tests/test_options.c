/* ranks: 1  builds: fp64
 *
 * Values of flags that no number can hold, and complaints: one line that any terminal can print, with the reason in
 * it. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/options.h"
#include "testing.h"

static void expect(const char *complaint, const char *want, const char *given)
{
    if (!complaint || !strstr(complaint, want) || strchr(complaint, '\n'))
        fail_msg("%s: got %s, want %s", given, complaint ? complaint : "no complaint", want);
}

static void complaints(void **state)
{
    (void)state;
    char value[20000];
    memset(value, 'x', sizeof value - 1);
    value[sizeof value - 1] = '\0';
    const char *complaint = complain("--model %s: is a file of %s, 100%%; %d", value, value, 7);
    expect(complaint, "x: is a file of x", "long values");
    expect(complaint, "x, 100%; 7", "what follows long values");
    assert_true(strlen(complaint) < 1000);
    memset(value, '\x1b', sizeof value - 1);
    expect(complain("%s: %s: %d", value, value, 7), "\\x1b: 7", "long values of control characters");
    complaint = complain(
        "%s", "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \x1b[2J\n\r\x7f \xff \xc2\x9b \xc0\x80 \xed\xa0\x80 \xe2\x82");
    assert_string_equal(complaint, "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \\x1b[2J\\x0a\\x0d\\x7f \\xff \\xc2\\x9b "
                                   "\\xc0\\x80 \\xed\\xa0\\x80 \\xe2\\x82");
    assert_string_equal(complain("again: %s", complain("%s", "first")), "again: first");
}

static const char *parse_flag(const char *flag, double *number)
{
    struct {
        double number;
        long whole;
    } target = {0, 0};
    const Option rows[] = {
        {"number", OPTION_NUMBER, 0, NULL, .min = -1e30, .max = 1e30, .help = ""},
        {"whole", OPTION_INT, sizeof(double), NULL, .min = 1, .max = 2147483647, .help = ""},
    };
    OptionTable table = {"flags", rows, 2, &target};
    char program[] = "program", copy[200];
    snprintf(copy, sizeof copy, "%s", flag);
    char *argv[] = {program, copy, NULL};
    int help;
    const char *complaint = options_parse(&table, 1, 2, argv, &help);
    *number = target.number;
    return complaint;
}

static void numbers(void **state)
{
    (void)state;
    double x;
    assert_null(parse_flag("--number=1e-300", &x));
    assert_true(x == 1e-300);
    assert_null(parse_flag("--number=0e-999", &x));
    assert_null(parse_flag("--number=0", &x));
    expect(parse_flag("--number=1e-400", &x), "--number 1e-400: too close to 0", "underflow");
    expect(parse_flag("--number=-1e-400", &x), "--number -1e-400: too close to 0", "underflow");
    expect(parse_flag("--number=1e400", &x), "must be a number from", "overflow");
    expect(parse_flag("--number=-inf", &x), "must be a number from", "infinity");
    expect(parse_flag("--number=nan", &x), "must be a number from", "NaN");
    expect(parse_flag("--whole=18446744073709551617", &x), "must be a whole number from 1 to 2147483647", "overflow");
    expect(parse_flag("--whole=1e3", &x), "must be a whole number", "an exponent");
    expect(parse_flag("--whole= 3", &x), "--whole  3: must be a whole number", "a blank");
    expect(parse_flag("--number=\t3", &x), "--number \\x093: must be a number", "a tab");
    expect(parse_flag("--whole=", &x), "--whole \"\": must be a whole number", "nothing");
    expect(parse_flag("--\x1b[31mred", &x), "--\\x1b[31mred: unknown", "an unknown flag that colours the terminal");
}

/* A flag may be shortened as long as one flag alone begins so. */
static void shortened(void **state)
{
    (void)state;
    long set[4] = {0};
    const Option rows[] = {
        {"steps", OPTION_INT, 0, NULL, .max = 9, .help = ""},
        {"step", OPTION_SWITCH, sizeof(long), NULL, .max = 9, .help = ""},
        {"strategy", OPTION_INT, 2 * sizeof(long), NULL, .max = 9, .help = ""},
        {"hold", OPTION_INT, 3 * sizeof(long), NULL, .max = 9, .help = ""},
    };
    OptionTable table = {"flags", rows, 4, set};
    static const struct {
        const char *flag, *want;
    } cases[] = {
        {"--st=3", "--st=3: ambiguous; could be --steps, --step, --strategy"},
        {"--s", "--s: ambiguous; could be --steps, --step, --strategy"},
        {"--h=3", "--h=3: ambiguous; could be --hold, --help"},
        {"--stx=3", "--stx=3: unknown flag; --help lists the flags"},
        {"--steps=3", NULL},
        {"--step", NULL},
        {"--str=4", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char program[] = "program", flag[32];
        snprintf(flag, sizeof flag, "%s", cases[i].flag);
        char *argv[] = {program, flag, NULL};
        int help;
        const char *complaint = options_parse(&table, 1, 2, argv, &help);
        if (!cases[i].want != !complaint || (complaint && strcmp(complaint, cases[i].want) != 0))
            fail_msg("%s: got %s", flag, complaint ? complaint : "no complaint");
    }
    assert_true(set[0] == 3 && set[1] == 1 && set[2] == 4 && set[3] == 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(complaints),
    cmocka_unit_test(numbers),
    cmocka_unit_test(shortened),
};

TESTING_MAIN(tests)
