/* Reading safetensors files: eight bytes with the header's length, a JSON header, then the bytes of the tensors. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "model/params.h"

typedef enum { DTYPE_F64, DTYPE_F32, DTYPE_BF16, DTYPE_I64, DTYPES } Dtype;

typedef struct {
    char name[96];
    Dtype dtype;
    int dims;
    int64_t shape[8];
    size_t count;     /* elements */
    const void *data; /* points into the mapped file; perhaps not aligned */
} Tensor;

typedef struct Safetensors Safetensors;

/* Maps the file into memory and checks its header. Sets *file and returns NULL, or returns a complaint that names the
 * file and what is wrong with it. */
const char *safetensors_open(Safetensors **file, const char *path);
void safetensors_close(Safetensors *file);

/* The tensor called `name`; NULL if there is none. The pointer is valid until the file is closed. */
const Tensor *safetensors_find(const Safetensors *file, const char *name);

/* Element i, as a double. */
double tensor_at(const Tensor *tensor, size_t i);

/* Checks that DIR/model.safetensors has all tensors of this model, in the right shapes, and no others. A file of a
 * tied model may also hold the head. Returns NULL or a complaint. */
const char *safetensors_check_weights(const ModelConfig *model, const char *dir);

/* Makes the same check, then loads this rank's shards of every weight. Returns NULL, or a complaint also if a weight
 * is not finite, or if the model is tied but the file's head differs from its embedding. */
const char *safetensors_load_weights(Params *params, const ModelConfig *model, const Kernels *kernels, const char *dir);
