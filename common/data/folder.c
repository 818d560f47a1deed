#define _GNU_SOURCE /* asprintf, tdestroy */
#include "data/folder.h"

#include <dirent.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

typedef struct {
    dev_t device;
    ino_t inode;
} Identity;

/* Paths that are still to be visited; the last one is next. */
typedef struct {
    char **path;
    int count, room;
} Stack;

/* `memory`, which must be there. */
static void *got(void *memory)
{
    if (!memory) fatal("out of memory for the files of --data");
    return memory;
}

static void append(char ***paths, int *count, int *room, char *path)
{
    if (*count == *room) {
        *room = *room ? 2 * *room : 64;
        *paths = got(realloc(*paths, (size_t)*room * sizeof **paths));
    }
    (*paths)[(*count)++] = path;
}

/* --- what was met --- */

static int compare_identities(const void *a, const void *b)
{
    const Identity *x = a, *y = b;
    if (x->device != y->device) return x->device < y->device ? -1 : 1;
    return x->inode < y->inode ? -1 : x->inode > y->inode;
}

static bool was_met(const Folder *f, const struct stat *info)
{
    Identity identity = {info->st_dev, info->st_ino};
    return tfind(&identity, (void *const *)&f->met, compare_identities) != NULL;
}

static void remember(Folder *f, const struct stat *info)
{
    Identity *identity = got(malloc(sizeof *identity));
    *identity = (Identity){info->st_dev, info->st_ino};
    got(tsearch(identity, &f->met, compare_identities));
}

/* --- what is left out --- */

/* By its name alone: what is hidden, and what `make` builds. */
static bool leaves_out(const char *name, LeftOut *reason)
{
    *reason = name[0] == '.' ? LEFT_HIDDEN : LEFT_BUILD;
    return name[0] == '.' || strcmp(name, "build") == 0;
}

void folder_leave_out(Folder *f, LeftOut reason, const char *path)
{
    if (f->left[reason].count++) return;
    const char *below = path + strlen(f->root);
    f->left[reason].example = got(strdup(below + strspn(below, "/")));
}

char *folder_note(const Folder *f)
{
    static const char *const reasons[LEFT_REASONS] = {
        [LEFT_HIDDEN] = "hidden",         [LEFT_BUILD] = "named build", [LEFT_BINARY] = "binary",
        [LEFT_EMPTY] = "empty",           [LEFT_SPECIAL] = "no file",   [LEFT_KNOWN] = "read under another name",
        [LEFT_UNREADABLE] = "unreadable",
    };
    char *note = NULL;
    size_t size;
    int total = 0;
    for (int r = 0; r < LEFT_REASONS; r++) total += f->left[r].count;
    if (total == 0) return NULL;
    FILE *text = got(open_memstream(&note, &size));
    fprintf(text, "data %s: %d file%s or folder%s left out: ", f->root, total, total > 1 ? "s" : "",
            total > 1 ? "s" : "");
    const char *comma = "";
    for (int r = 0; r < LEFT_REASONS; r++) {
        if (f->left[r].count == 0) continue;
        fprintf(text, "%s%d %s (%s%s)", comma, f->left[r].count, reasons[r], f->left[r].example,
                f->left[r].count > 1 ? ", ..." : "");
        comma = ", ";
    }
    if (fclose(text) != 0) got(NULL);
    for (char *c = note; *c; c++)
        if (*c == '\n' || *c == '\r') *c = ' '; /* a name may hold them */
    return note;
}

/* --- the walk --- */

static const char *visit_folder(Folder *f, Stack *stack, const char *path)
{
    struct dirent **entries;
    int n = scandir(path, &entries, NULL, alphasort);
    if (n < 0 && errno == EACCES && strcmp(path, f->root) != 0) {
        folder_leave_out(f, LEFT_UNREADABLE, path);
        return NULL;
    }
    if (n < 0 && errno == ENOMEM) got(NULL);
    if (n < 0) return complain("--data %s: %s", path, strerror(errno));
    const char *slash = path[strlen(path) - 1] == '/' ? "" : "/";
    for (int i = n - 1; i >= 0; i--) { /* the stack turns the order around */
        const char *name = entries[i]->d_name;
        char *child;
        LeftOut reason;
        if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0) {
            if (asprintf(&child, "%s%s%s", path, slash, name) < 0) got(NULL);
            if (leaves_out(name, &reason)) {
                folder_leave_out(f, reason, child);
                free(child);
            } else
                append(&stack->path, &stack->count, &stack->room, child);
        }
        free(entries[i]);
    }
    free(entries);
    return NULL;
}

/* Takes over `path`. */
static const char *visit(Folder *f, Stack *stack, char *path)
{
    struct stat info;
    const char *complaint = NULL;
    bool found = stat(path, &info) == 0;
    if (!found && errno == ENAMETOOLONG)
        complaint = complain("--data %s: a path in it is longer than %d bytes: %.60s...", f->root, PATH_MAX - 1,
                             path + strlen(f->root));
    else if (!found)
        folder_leave_out(f, LEFT_UNREADABLE, path);
    else if (!S_ISDIR(info.st_mode) && !S_ISREG(info.st_mode))
        folder_leave_out(f, LEFT_SPECIAL, path);
    else if (was_met(f, &info))
        folder_leave_out(f, LEFT_KNOWN, path);
    else {
        remember(f, &info);
        if (S_ISREG(info.st_mode)) {
            append(&f->path, &f->files, &f->room, path);
            return NULL;
        }
        complaint = visit_folder(f, stack, path);
    }
    free(path);
    return complaint;
}

const char *folder_list(Folder *f, const char *root)
{
    *f = (Folder){.root = root};
    Stack stack = {0};
    const char *complaint = NULL;
    append(&stack.path, &stack.count, &stack.room, got(strdup(root)));
    while (stack.count > 0 && !complaint) complaint = visit(f, &stack, stack.path[--stack.count]);
    while (stack.count > 0) free(stack.path[--stack.count]);
    free(stack.path);
    return complaint;
}

void folder_free(Folder *f)
{
    for (int i = 0; i < f->files; i++) free(f->path[i]);
    free(f->path);
    for (int r = 0; r < LEFT_REASONS; r++) free(f->left[r].example);
    tdestroy(f->met, free);
    *f = (Folder){0};
}

bool folder_takes(const Folder *f, const char *path)
{
    struct stat info;
    LeftOut reason;
    char copy[PATH_MAX];
    if (stat(path, &info) == 0 && was_met(f, &info)) return true;
    snprintf(copy, sizeof copy, "%s", path);
    if (leaves_out(basename(copy), &reason)) return false;
    snprintf(copy, sizeof copy, "%s", path);
    return stat(dirname(copy), &info) == 0 && was_met(f, &info);
}
