/* Command-line options, described once: the parser, --help and the logged configuration read the same rows. */
#pragma once

#include <stddef.h>

typedef enum {
    OPTION_INT,          /* long, within [min, max] */
    OPTION_NUMBER,       /* double, finite, within [min, max] */
    OPTION_TEXT,         /* const char * */
    OPTION_CHOICE,       /* const char *, one of `choices`, which are separated by |; may start out empty */
    OPTION_SWITCH,       /* long: 1 if the flag is given; takes no value */
    OPTION_OPTIONAL_INT, /* long: --name=K sets K, --name alone sets `given` */
} OptionType;

typedef struct {
    const char *name;
    OptionType type;
    size_t offset;       /* of the member in the table's target */
    const char *initial; /* default, as text; NULL: the member stays as it was, and is derived later */
    double min, max;
    const char *choices;
    const char *given;
    const char *help;
    const char *operand; /* what --help calls the value of a text; NULL: TEXT */
} Option;

/* A table of options and the struct that it fills. */
typedef struct {
    const char *title;
    const Option *rows;
    int count;
    void *target;
} OptionTable;

/* Sets every default, then reads argv. Returns NULL or a complaint that names the flag, the value and the rule.
 * *help is set when --help was given. */
const char *options_parse(const OptionTable *tables, int table_count, int argc, char **argv, int *help);

void options_help(const OptionTable *tables, int table_count, const char *program);

/* The value of one option as text. The caller frees it. */
char *options_value(const OptionTable *table, int row);
