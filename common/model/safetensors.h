/* Reading and writing safetensors files: eight bytes of header length, a JSON header, then the tensors' bytes. */
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
    const void *data; /* in the file's mapping */
} Tensor;

typedef struct Safetensors Safetensors;

/* Maps the file. Returns NULL, with *file set, or a complaint that names the file and what is wrong with it. */
const char *safetensors_open(Safetensors **file, const char *path);
void safetensors_close(Safetensors *file);

/* NULL if there is no such tensor. Valid until the file is closed. */
const Tensor *safetensors_find(const Safetensors *file, const char *name);

/* Element i, as a double. */
double tensor_at(const Tensor *tensor, size_t i);

/* Has DIR/model.safetensors just the tensors of this model? Returns NULL, or a complaint about a missing file, a
 * missing tensor or a shape that is not the model's. */
const char *safetensors_check_weights(const ModelConfig *model, const char *dir);

/* Checks it, and loads every weight. A weight that is not finite is refused, and a head that is not the embedding in
 * a model that says it is. */
const char *safetensors_load_weights(Params *params, const Kernels *kernels, const char *dir);
