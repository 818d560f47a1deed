/* read_json TRACE LOG: fails unless TRACE is one JSON object whose spans nest or follow each other within every lane of
 * every rank, and LOG is one JSON object a line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

/* NULL, having said why, for what is not one JSON object. */
static cJSON *parse(const char *text, size_t length, const char *path)
{
    cJSON *object;
    const char *complaint = json_parse(&object, text, length, path);
    if (complaint) fprintf(stderr, "%s\n", complaint);
    return object;
}

static char *read_all(const char *path, size_t *length)
{
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    char *text = calloc((size_t)size + 1, 1);
    if (fread(text, 1, (size_t)size, f) != (size_t)size) size = 0;
    fclose(f);
    *length = (size_t)size;
    return text;
}

static double number(const cJSON *event, const char *key)
{
    const cJSON *item = cJSON_GetObjectItem(event, key);
    return cJSON_IsNumber(item) ? item->valuedouble : -1;
}

/* Two spans of a lane: one inside the other, or one after the other. A nanosecond is rounding. */
static int tangled(const cJSON *a, const cJSON *b)
{
    if (number(a, "pid") != number(b, "pid") || number(a, "tid") != number(b, "tid")) return 0;
    double a0 = number(a, "ts"), a1 = a0 + number(a, "dur"), b0 = number(b, "ts"), b1 = b0 + number(b, "dur");
    const double slack = 0.002;
    int apart = a1 <= b0 + slack || b1 <= a0 + slack;
    int a_in_b = a0 >= b0 - slack && a1 <= b1 + slack, b_in_a = b0 >= a0 - slack && b1 <= a1 + slack;
    return !apart && !a_in_b && !b_in_a;
}

static int check_trace(const char *path)
{
    size_t length;
    char *text = read_all(path, &length);
    cJSON *trace = text ? parse(text, length, path) : NULL;
    free(text);
    const cJSON *events = cJSON_GetObjectItem(trace, "traceEvents");
    if (!cJSON_IsArray(events)) return fprintf(stderr, "%s is not a trace\n", path);
    for (const cJSON *a = events->child; a; a = a->next)
        for (const cJSON *b = a->next; b; b = b->next)
            if (number(a, "dur") >= 0 && number(b, "dur") >= 0 && tangled(a, b))
                return fprintf(stderr, "%s: spans at %f and %f overlap in one lane\n", path, number(a, "ts"),
                               number(b, "ts"));
    cJSON_Delete(trace);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 3 || check_trace(argv[1])) return 1;
    size_t length;
    char *text = read_all(argv[2], &length);
    for (char *line = text ? strtok(text, "\n") : NULL; line; line = strtok(NULL, "\n")) {
        cJSON *object = parse(line, strlen(line), argv[2]);
        if (!object) return 1;
        cJSON_Delete(object);
    }
    return text == NULL;
}
