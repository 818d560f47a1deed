#include "settings/outputs.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "data/folder.h"

/* The folder of a file that may not exist yet. */
static const char *folder_of(const char *path, char copy[PATH_MAX])
{
    snprintf(copy, PATH_MAX, "%s", path);
    return dirname(copy);
}

/* Does this standard stream go to the file? Two writers, each with an offset of its own, overwrite each other. */
static bool is_stream(const struct stat *file, int stream)
{
    struct stat open_file;
    return S_ISREG(file->st_mode) && fstat(stream, &open_file) == 0 && open_file.st_dev == file->st_dev &&
           open_file.st_ino == file->st_ino;
}

/* Refuses a named pipe: opening it waits for a reader, and perhaps none comes. A pipe without a name, such as
 * /dev/stdout may be, has a reader already. Also refuses a link to nothing: the file would be created where the link
 * points. */
static const char *check_file(const char *flag, const char *path)
{
    struct stat link, file;
    char copy[PATH_MAX], full[PATH_MAX];
    size_t length = strlen(path);
    if (length > 1 && path[length - 1] == '/') return complain("--%s %s: %s", flag, path, strerror(EISDIR));
    if (lstat(path, &link) != 0 && (errno != ENOENT || access(folder_of(path, copy), W_OK | X_OK) != 0))
        return complain("--%s %s: %s", flag, path, strerror(errno));
    if (lstat(path, &link) != 0) return NULL; /* a new file */
    if (stat(path, &file) != 0) return complain("--%s %s: a link to nothing", flag, path);
    if (S_ISDIR(file.st_mode)) return complain("--%s %s: %s", flag, path, strerror(EISDIR));
    if (S_ISFIFO(file.st_mode) && !realpath(path, full)) return NULL;
    if (!S_ISREG(file.st_mode) && !S_ISCHR(file.st_mode))
        return complain("--%s %s: neither a file nor a device", flag, path);
    if (is_stream(&file, STDOUT_FILENO)) return complain("--%s %s: standard output goes there", flag, path);
    if (is_stream(&file, STDERR_FILENO)) return complain("--%s %s: standard error goes there", flag, path);
    int opened = open(path, O_WRONLY); /* more than access: a program that runs cannot be written */
    if (opened < 0) return complain("--%s %s: %s", flag, path, strerror(errno));
    close(opened);
    return NULL;
}

/* The path with all links resolved. The file need not exist yet, but its folder must: if not, returns false. */
static bool full_path(const char *path, char full[PATH_MAX])
{
    char copy[PATH_MAX], folder[PATH_MAX];
    if (realpath(path, full)) return true;
    if (!realpath(folder_of(path, copy), folder)) return false;
    snprintf(copy, sizeof copy, "%s", path);
    return snprintf(full, PATH_MAX, "%s/%s", folder, basename(copy)) < PATH_MAX;
}

static bool is_same_file(const char *a, const char *b)
{
    struct stat mine, other;
    char path[PATH_MAX], other_path[PATH_MAX];
    if (!*a || !*b || !full_path(a, path) || !full_path(b, other_path)) return false;
    if (stat(a, &mine) != 0 || stat(b, &other) != 0) return strcmp(path, other_path) == 0;
    return S_ISREG(mine.st_mode) && mine.st_dev == other.st_dev && mine.st_ino == other.st_ino;
}

typedef struct {
    const char *flag, *path; /* path: "" if the flag is not given */
    bool made;
} Output;
enum { OUTPUTS = 5 };

static void list_outputs(const Config *c, Output outputs[OUTPUTS])
{
    const Output given[OUTPUTS] = {{"log", c->log, false},
                                   {"trace", c->trace, false},
                                   {"dump", c->dump, false},
                                   {"save-routes", c->save_routes, false},
                                   {"autotune", c->autotune, false}};
    memcpy(outputs, given, sizeof given);
}

static bool is_file_of_model(const Config *c, const char *path)
{
    static const char *const names[] = {"config.json", "model.safetensors"};
    for (int n = 0; n < 2 && c->pretrained; n++) {
        char part[PATH_MAX];
        if (snprintf(part, sizeof part, "%s/%s", c->model, names[n]) < PATH_MAX && is_same_file(path, part))
            return true;
    }
    return false;
}

/* `data`: the folder of data; NULL: the data is one file. */
static const char *check_output(const Config *c, const Output outputs[OUTPUTS], int o, const Folder *data)
{
    const char *flag = outputs[o].flag, *path = outputs[o].path;
    char full[PATH_MAX];
    const char *complaint = check_file(flag, path);
    if (complaint) return complaint;
    if (is_same_file(path, c->data)) return complain("--%s %s: the same file is given to --data", flag, path);
    if (is_same_file(path, c->routes)) return complain("--%s %s: the same file is given to --routes", flag, path);
    for (int other = 0; other < o; other++)
        if (is_same_file(path, outputs[other].path))
            return complain("--%s %s: the same file is given to --%s", flag, path, outputs[other].flag);
    if (is_file_of_model(c, path)) return complain("--%s %s: is a file of --model %s", flag, path, c->model);
    if (data && full_path(path, full) && folder_takes(data, full))
        return complain("--%s %s: lies in --data %s, where the next run would read it", flag, path, c->data);
    return NULL;
}

const char *outputs_check(const Config *c)
{
    Output outputs[OUTPUTS];
    Folder folder = {0};
    struct stat info;
    const char *complaint = NULL;
    list_outputs(c, outputs);
    bool any = *c->log || *c->trace || *c->dump || *c->save_routes || *c->autotune;
    bool is_folder = any && stat(c->data, &info) == 0 && S_ISDIR(info.st_mode);
    if (is_folder) complaint = folder_list(&folder, c->data);
    for (int o = 0; o < OUTPUTS && !complaint; o++)
        if (*outputs[o].path) complaint = check_output(c, outputs, o, is_folder ? &folder : NULL);
    folder_free(&folder);
    return complaint;
}

const char *outputs_create(const Config *c)
{
    Output outputs[OUTPUTS];
    const char *complaint = NULL;
    list_outputs(c, outputs);
    for (int o = 0; o < OUTPUTS && !complaint; o++) {
        if (!*outputs[o].path) continue;
        int file = open(outputs[o].path, O_WRONLY | O_CREAT | O_EXCL, 0666);
        outputs[o].made = file >= 0;
        if (file < 0 && errno == EEXIST) file = open(outputs[o].path, O_WRONLY | O_CREAT, 0666); /* as fopen will */
        if (file >= 0)
            close(file);
        else
            complaint = complain("--%s %s: %s", outputs[o].flag, outputs[o].path, strerror(errno));
    }
    for (int o = 0; o < OUTPUTS && complaint; o++)
        if (outputs[o].made) unlink(outputs[o].path);
    return complaint;
}

void output_write(FILE *file, const char *flag, const char *path, const void *bytes, size_t size)
{
    if (fwrite(bytes, 1, size, file) < size || fflush(file) != 0) fatal("--%s %s: %s", flag, path, strerror(errno));
}

void output_close(FILE *file, const char *flag, const char *path)
{
    if (fclose(file) != 0) fatal("--%s %s: %s", flag, path, strerror(errno));
}
