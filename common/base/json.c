#include "base/json.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* \u0000 would end a string early, and cJSON takes an escape that is no number for the same. A backslash stands only
 * inside strings, and begins an escape of two characters or more. */
static bool has_bad_escape(const char *text, size_t length)
{
    const char *end = text + length;
    for (const char *p = text; (p = memchr(p, '\\', (size_t)(end - p))) && end - p >= 6; p += 2) {
        if (p[1] != 'u') continue;
        for (int i = 2; i < 6; i++)
            if (!isxdigit((unsigned char)p[i])) return true;
        if (memcmp(p + 2, "0000", 4) == 0) return true;
    }
    return false;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A key that some object in `item` has twice, or NULL. */
static const char *repeated_key(const cJSON *item)
{
    const char *found = NULL;
    size_t keys = 0;
    for (const cJSON *child = item->child; child && !found; child = child->next, keys++)
        if (child->child) found = repeated_key(child);
    if (found || !cJSON_IsObject(item)) return found;
    const char **key = malloc((keys + 1) * sizeof *key);
    if (!key) fatal("out of memory for JSON");
    keys = 0;
    for (const cJSON *child = item->child; child; child = child->next) key[keys++] = child->string;
    qsort(key, keys, sizeof *key, by_text);
    for (size_t i = 1; i < keys && !found; i++)
        if (strcmp(key[i - 1], key[i]) == 0) found = key[i];
    free(key);
    return found;
}

const char *json_parse(cJSON **out, const char *text, size_t length, const char *called)
{
    *out = NULL;
    if (memchr(text, '\0', length) || has_bad_escape(text, length))
        return complain("%s: holds a NUL byte or a malformed escape; JSON is text", called);
    const char *end = text;
    errno = 0; /* cJSON reads numbers by strtod, which sets it when a double cannot hold one */
    cJSON *json = cJSON_ParseWithLengthOpts(text, length, &end, false);
    bool out_of_range = errno == ERANGE;
    while (end < text + length && isspace((unsigned char)*end)) end++;
    const char *complaint = NULL, *key;
    if (!cJSON_IsObject(json))
        complaint = complain("%s: not a JSON object", called);
    else if (end != text + length)
        complaint = complain("%s: text follows the JSON object", called);
    else if (out_of_range)
        complaint = complain("%s: holds a number that is too large, or too close to 0, for a double", called);
    else if ((key = repeated_key(json)))
        complaint = complain("%s: has the key %s twice", called, key);
    if (complaint)
        cJSON_Delete(json);
    else
        *out = json;
    return complaint;
}
