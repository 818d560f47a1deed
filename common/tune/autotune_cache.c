#include "tune/autotune_cache.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "settings/outputs.h"

enum { LINE = 1200, LARGEST_FILE = 1 << 20 };
static const char HEADER[] = "# kernels chosen by --autotune";
static char *lines; /* added and not saved yet */
static size_t lines_length;

const char *cache_check(const char *path)
{
    char line[sizeof HEADER + 1] = "";
    FILE *f = fopen(path, "r");
    if (!f && errno == ENOENT) return NULL;
    if (!f) return complain("--autotune %s: %s", path, strerror(errno));
    bool ours = fgets(line, sizeof line, f) == NULL; /* empty */
    line[strcspn(line, "\r\n")] = '\0';
    ours |= strcmp(line, HEADER) == 0;
    rewind(f);
    long bytes = 0;
    for (int c; ours && bytes <= LARGEST_FILE && (c = getc(f)) != EOF; bytes++) ours = c != '\0';
    fclose(f);
    if (bytes > LARGEST_FILE)
        return complain("--autotune %s: must be at most %d bytes; without it the choices are measured again", path,
                        LARGEST_FILE);
    return ours ? NULL : complain("--autotune %s: is there, and not a file of --autotune", path);
}

bool cache_find(char *value, size_t room, const char *path, const char *key,
                bool (*good)(const char *value, const void *context), const void *context)
{
    char line[LINE];
    size_t length = strlen(key);
    bool found = false;
    FILE *f = fopen(path, "r");
    bool begins = true; /* the piece that was read begins a line */
    while (f && fgets(line, sizeof line, f)) {
        bool whole = begins;
        begins = strchr(line, '\n') != NULL;
        line[strcspn(line, "\r\n")] = '\0';
        if (!whole || strncmp(line, key, length) != 0 || strncmp(line + length, " = ", 3) != 0) continue;
        if (!good(line + length + 3, context)) continue;
        snprintf(value, room, "%s", line + length + 3);
        found = true;
    }
    if (f) fclose(f);
    return found;
}

void cache_add(const char *key, const char *value)
{
    size_t length = strlen(key) + strlen(value) + sizeof " = \n";
    lines = realloc(lines, lines_length + length);
    if (!lines) fatal("out of memory for --autotune");
    lines_length += (size_t)snprintf(lines + lines_length, length, "%s = %s\n", key, value);
}

void cache_save(const char *path)
{
    static const char flag[] = "autotune";
    const char *complaint = cache_check(path); /* another file may be there by now */
    if (complaint) fatal("%s", complaint);
    FILE *f = fopen(path, "a+");
    if (!f) fatal("--autotune %s: %s", path, strerror(errno));
    int last = fseek(f, -1, SEEK_END) == 0 ? fgetc(f) : EOF; /* of the file as it is now; EOF: it is empty, or new */
    fseek(f, 0, SEEK_END);
    if (last == EOF) output_write(f, flag, path, HEADER, sizeof HEADER - 1);
    if (last != '\n') output_write(f, flag, path, "\n", 1);
    if (lines) output_write(f, flag, path, lines, lines_length);
    output_close(f, flag, path);
    free(lines);
    lines = NULL;
    lines_length = 0;
}
