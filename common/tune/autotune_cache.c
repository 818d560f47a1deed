#include "tune/autotune_cache.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

enum { LINE = 1200, LARGEST_FILE = 1 << 20 };
static const char HEADER[] = "# kernels chosen by --autotune";

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

const char *cache_append(const char *path, const char *key, const char *value)
{
    const char *complaint = cache_check(path); /* another file may be there by now */
    if (complaint) return complaint;
    FILE *f = fopen(path, "a+");
    if (!f) return complain("--autotune %s: %s", path, strerror(errno));
    int last = fseek(f, -1, SEEK_END) == 0 ? fgetc(f) : EOF; /* of the file as it is now; EOF: it is empty, or new */
    fseek(f, 0, SEEK_END);
    int bad = last == EOF ? fprintf(f, "%s\n", HEADER) < 0 : last != '\n' ? fputc('\n', f) == EOF : 0;
    bad |= fprintf(f, "%s = %s\n", key, value) < 0;
    if (fclose(f) != 0 || bad) fatal("--autotune %s: %s", path, strerror(errno));
    return NULL;
}
