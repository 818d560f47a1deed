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

#include "data/data.h"
#include "base/error.h"

/* The folder of a file that may not exist yet. */
static const char *folder_of(const char *path, char copy[PATH_MAX])
{
    snprintf(copy, PATH_MAX, "%s", path);
    return dirname(copy);
}

/* Two that write to one file, each from where it thinks the end is, overwrite each other. */
static bool is_stream(const struct stat *file, int stream)
{
    struct stat open_file;
    return S_ISREG(file->st_mode) && fstat(stream, &open_file) == 0 && open_file.st_dev == file->st_dev &&
           open_file.st_ino == file->st_ino;
}

/* Writing to a named pipe needs a reader, who may not come (/dev/stdout may be a pipe without a name, whose reader is there);
 * to a link that leads nowhere would put a file somewhere else. */
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

/* The path without links, also of a file that does not exist yet; false if its folder does not. */
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

static bool is_read_as_data(const char *path, const char *data)
{
    struct stat info;
    char folder[PATH_MAX], file[PATH_MAX];
    if (stat(data, &info) != 0 || !S_ISDIR(info.st_mode)) return false;
    if (!realpath(data, folder) || !full_path(path, file)) return false;
    size_t length = strcmp(folder, "/") == 0 ? 0 : strlen(folder);
    if (strncmp(file, folder, length) != 0 || file[length] != '/') return false;
    for (char *name = strtok(file + length, "/"); name; name = strtok(NULL, "/"))
        if (data_leaves_out(name)) return false;
    return true;
}

const char *outputs_check(const Config *c)
{
    const struct {
        const char *flag, *path;
    } files[] = {{"data", c->data}, {"log", c->log}, {"trace", c->trace}, {"dump", c->dump}, {"autotune", c->autotune}};
    for (int f = 1; f < 5; f++) {
        const char *flag = files[f].flag, *path = files[f].path;
        if (!*path) continue;
        const char *complaint = check_file(flag, path);
        if (complaint) return complaint;
        for (int o = 0; o < f; o++)
            if (is_same_file(path, files[o].path))
                return complain("--%s %s: the same file is given to --%s", flag, path, files[o].flag);
        static const char *const weights[] = {"config.json", "model.safetensors"};
        for (int w = 0; w < 2 && c->pretrained; w++) {
            char part[PATH_MAX];
            if (snprintf(part, sizeof part, "%s/%s", c->model, weights[w]) < PATH_MAX && is_same_file(path, part))
                return complain("--%s %s: is a file of --model %s", flag, path, c->model);
        }
        if (is_read_as_data(path, c->data))
            return complain("--%s %s: lies in --data %s, where the next run would read it", flag, path, c->data);
    }
    return NULL;
}

const char *outputs_create(const Config *c)
{
    struct {
        const char *flag, *path;
        bool made;
    } files[] = {{"log", c->log, false}, {"trace", c->trace, false}, {"dump", c->dump, false}};
    const char *complaint = NULL;
    for (int f = 0; f < 3 && !complaint; f++) {
        if (!*files[f].path) continue;
        int file = open(files[f].path, O_WRONLY | O_CREAT | O_EXCL, 0666);
        files[f].made = file >= 0;
        if (files[f].made)
            close(file);
        else if (errno != EEXIST)
            complaint = complain("--%s %s: %s", files[f].flag, files[f].path, strerror(errno));
    }
    for (int f = 0; f < 3 && complaint; f++)
        if (files[f].made) unlink(files[f].path);
    return complaint;
}
