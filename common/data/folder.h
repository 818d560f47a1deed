/* A folder of data: which of its files are read, in which order, and which are left out.
 *
 * Links are followed. A folder or file that has several names is met once, so a link to a folder above ends there.
 * Files come in order of their names, folder by folder.
 */
#pragma once

#include <stdbool.h>
#include <sys/stat.h>

typedef enum {
    LEFT_HIDDEN,
    LEFT_BUILD,
    LEFT_BINARY,
    LEFT_EMPTY,
    LEFT_UNREADABLE,
    LEFT_SPECIAL,
    LEFT_KNOWN, /* another name of what was met before */
    LEFT_REASONS
} LeftOut;

typedef struct {
    const char *root;
    char **path; /* [files] to be read, in this order */
    int files, room;
    void *met; /* device and inode of every folder and file, a tree of tsearch(3) */
    struct {
        int count;
        char *example; /* the first path, below the root */
    } left[LEFT_REASONS];
} Folder;

/* Lists the folder `root`, and all below it; reads no file. Returns NULL or a complaint. folder_free in either case. */
const char *folder_list(Folder *folder, const char *root);
void folder_free(Folder *folder);

/* Counts a path that the reader of a file leaves out. */
void folder_leave_out(Folder *folder, LeftOut reason, const char *path);

/* Would the file `path` be read if it lay there, in this folder or below? `path` is without links. Its folder must
 * exist. */
bool folder_takes(const Folder *folder, const char *path);

/* One line: how many files and folders were left out, and why; NULL: none. The caller frees it. */
char *folder_note(const Folder *folder);
