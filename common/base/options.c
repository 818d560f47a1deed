#include "base/options.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { OPTIONS_MAX = 96, HELP = 1 };

static void *member(const OptionTable *table, int row)
{
    return (char *)table->target + table->rows[row].offset;
}

/* Is `value` one of the words in "a|b|c"? */
static bool is_choice(const char *choices, const char *value)
{
    size_t length = strlen(value);
    for (const char *c = choices; c && *c;) {
        size_t word = strcspn(c, "|");
        if (word == length && strncmp(c, value, length) == 0) return true;
        c += word + (c[word] == '|');
    }
    return false;
}

/* A value as a complaint shows it: an empty one is seen too. */
static const char *shown(const char *value)
{
    return *value ? value : "\"\"";
}

static const char *set_int(const Option *o, long *target, const char *text)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || isspace((unsigned char)*text) || end == text || *end || (double)value < o->min ||
        (double)value > o->max)
        return complain("--%s %s: must be a whole number from %.0f to %.0f", o->name, shown(text), o->min, o->max);
    *target = value;
    return NULL;
}

static const char *set_number(const Option *o, double *target, const char *text)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (errno == ERANGE && fabs(value) < 1) return complain("--%s %s: too close to 0 for a double", o->name, text);
    if (isspace((unsigned char)*text) || end == text || *end || !isfinite(value) || value < o->min || value > o->max)
        return complain("--%s %s: must be a number from %g to %g", o->name, shown(text), o->min, o->max);
    *target = value;
    return NULL;
}

static const char *set(const OptionTable *table, int row, const char *text)
{
    const Option *o = &table->rows[row];
    switch (o->type) {
    case OPTION_INT:
    case OPTION_SWITCH:
    case OPTION_OPTIONAL_INT: return set_int(o, member(table, row), text);
    case OPTION_NUMBER: return set_number(o, member(table, row), text);
    case OPTION_CHOICE:
        if (!is_choice(o->choices, text))
            return complain("--%s %s: must be one of %s", o->name, shown(text), o->choices);
        break;
    case OPTION_TEXT: /* a text with an operand is a name, a file or a list; one without may be empty */
        if (o->operand && !*text) return complain("--%s \"\": must not be empty; give %s", o->name, o->operand);
        break;
    }
    *(const char **)member(table, row) = text;
    return NULL;
}

static void set_initial(const OptionTable *table, int row)
{
    const Option *o = &table->rows[row];
    if (o->type == OPTION_CHOICE || o->type == OPTION_TEXT)
        *(const char **)member(table, row) = o->initial;
    else if (o->type == OPTION_NUMBER)
        *(double *)member(table, row) = strtod(o->initial, NULL);
    else
        *(long *)member(table, row) = strtol(o->initial, NULL, 10);
}

/* The complaint about a flag that getopt_long does not take: no flag begins with it, or several do. */
static const char *complain_unknown(const char *flag, const struct option *known)
{
    char candidates[VALUE_MAX] = "";
    int count = 0;
    size_t used = 0, length = strcspn(flag, "=");
    for (const struct option *k = known; k->name && length > 2; k++) {
        if (strncmp(k->name, flag + 2, length - 2) != 0) continue;
        if (used < sizeof candidates)
            used += (size_t)snprintf(candidates + used, sizeof candidates - used, "%s--%s", count ? ", " : "", k->name);
        count++;
    }
    if (count < 2) return complain("%s: unknown flag; --help lists the flags", flag);
    return complain("%s: ambiguous; could be %s", flag, candidates);
}

const char *options_parse(const OptionTable *tables, int table_count, int argc, char **argv, int *help)
{
    struct option known[OPTIONS_MAX + 2];
    struct {
        const OptionTable *table;
        int row;
    } where[OPTIONS_MAX];
    int n = 0;
    for (int t = 0; t < table_count; t++)
        for (int r = 0; r < tables[t].count; r++) {
            const Option *o = &tables[t].rows[r];
            int argument = o->type == OPTION_SWITCH         ? no_argument
                           : o->type == OPTION_OPTIONAL_INT ? optional_argument
                                                            : required_argument;
            CHECK(n < OPTIONS_MAX);
            for (int other = 0; other < n; other++) CHECK(strcmp(known[other].name, o->name) != 0);
            known[n] = (struct option){o->name, argument, NULL, 256 + n};
            where[n].table = &tables[t];
            where[n].row = r;
            if (o->initial) set_initial(&tables[t], r);
            n++;
        }
    known[n] = (struct option){"help", no_argument, NULL, HELP};
    known[n + 1] = (struct option){0};

    *help = 0;
    optind = 0; /* so that a process may parse more than once */
    opterr = 0;
    int code;
    while ((code = getopt_long(argc, argv, ":", known, NULL)) != -1) {
        if (code == HELP) {
            *help = 1;
        } else if (code == '?' || code == ':') {
            const char *flag = argv[optind - 1];
            if (code == ':') return complain("%s: needs a value; --help lists the flags", flag);
            if (optopt >= 256 || optopt == HELP) return complain("%s: takes no value; --help lists the flags", flag);
            if (optopt) return complain("-%c: unknown flag; --help lists the flags", optopt);
            return complain_unknown(flag, known);
        } else {
            const OptionTable *table = where[code - 256].table;
            const Option *o = &table->rows[where[code - 256].row];
            bool next_word = optarg && optarg == argv[optind - 1]; /* --name=VALUE may have any value */
            if (next_word && strncmp(optarg, "--", 2) == 0)
                return complain("--%s %s: needs a value; one that begins with -- is given as --%s=VALUE", o->name,
                                optarg, o->name);
            const char *text = optarg ? optarg : o->type == OPTION_SWITCH ? "1" : o->given;
            const char *complaint = set(table, where[code - 256].row, text);
            if (complaint) return complaint;
        }
    }
    if (optind < argc) return complain("%s: not a flag; --help lists the flags", shown(argv[optind]));
    return NULL;
}

void options_help(const OptionTable *tables, int table_count, const char *program)
{
    printf("usage: mpirun -n RANKS %s [flags]\n", program);
    for (int t = 0; t < table_count; t++) {
        printf("\n%s\n", tables[t].title);
        for (int r = 0; r < tables[t].count; r++) {
            const Option *o = &tables[t].rows[r];
            static const char *const operand[] = {" N", " X", " ", " ", "", "[=K]"};
            const char *word = o->type == OPTION_TEXT ? o->operand ? o->operand : "TEXT" : o->choices ? o->choices : "";
            char flag[160];
            snprintf(flag, sizeof flag, "--%s%s%s", o->name, operand[o->type], word);
            printf("  %-26s%s %s", flag, strlen(flag) > 26 ? "\n                            " : "", o->help);
            bool shown = o->initial && o->type != OPTION_SWITCH && o->type != OPTION_OPTIONAL_INT;
            if (shown && *o->initial > ' ') printf(" (%s)", o->initial);
            printf("\n");
        }
    }
}

char *options_value(const OptionTable *table, int row)
{
    const Option *o = &table->rows[row];
    const void *value = member(table, row);
    char number[32];
    const char *text = number;
    switch (o->type) {
    case OPTION_INT:
    case OPTION_SWITCH:
    case OPTION_OPTIONAL_INT: snprintf(number, sizeof number, "%ld", *(const long *)value); break;
    case OPTION_NUMBER: snprintf(number, sizeof number, "%.17g", *(const double *)value); break;
    case OPTION_TEXT:
    case OPTION_CHOICE: text = *(char *const *)value ? *(char *const *)value : ""; break;
    }
    char *copy = strdup(text);
    if (!copy) fatal("out of memory");
    return copy;
}
