#!/bin/sh
# Compiles and links five-line programs to find the libraries of this machine. Prints what it finds, and writes make
# variables to the file $1. Reads CC, MPICC, CUDA_HOME, NCCL_HOME, and BLAS and CUDA (auto: use if found; 1: required;
# 0: do not use).
set -u
out=$1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir -p "$(dirname "$out")"

# try COMPILER SOURCE FLAGS...: does the program compile and link?
try() {
    compiler=$1
    printf '%s\n' "$2" > "$work/probe.c"
    shift 2
    $compiler "$work/probe.c" -o "$work/probe" "$@" > "$work/log" 2>&1
}

missing() {
    echo "found: no $1. $2" >&2
    echo "found: 'make deps' installs what the suite needs" >&2
    exit 1
}

: > "$work/vars"
if ! try "$MPICC" '#include <mpi.h>
int main(int c, char **v) { MPI_Init(&c, &v); return MPI_Finalize(); }'; then
    missing MPI "Install Open MPI (Debian: libopenmpi-dev openmpi-bin; Homebrew: open-mpi), or set MPI_HOME."
fi
echo "found: MPI ($(command -v $MPICC))"

if ! try "$CC" '#include <cjson/cJSON.h>
int main(void) { return cJSON_CreateObject() == 0; }' -lcjson; then
    missing cJSON "Install it (Debian: libcjson-dev; Homebrew: cjson)."
fi

if try "$CC" '#include <omp.h>
int main(void) { return omp_get_max_threads() == 0; }' -fopenmp; then
    echo "OPENMP := -fopenmp" >> "$work/vars"
    echo "found: OpenMP"
else
    echo "found: no OpenMP; kernels run on one thread"
fi

blas='#include <cblas.h>
#include <stdio.h>
int main(void) { openblas_set_num_threads(1); return puts(openblas_get_corename()) < 0; }'
if [ "$BLAS" = 0 ]; then
    echo "found: BLAS switched off; matrix products are three plain loops"
elif try "$CC" "$blas" -lopenblas; then
    printf 'HAVE_BLAS := 1\nBLAS_LIBS := -lopenblas\n' >> "$work/vars"
    advice=
    if [ "$(env -u OPENBLAS_CORETYPE "$work/probe")" = Prescott ]; then # its kernels for an unknown processor
        grep -qw avx2 /proc/cpuinfo 2> /dev/null && advice=Haswell
        grep -qw avx512f /proc/cpuinfo 2> /dev/null && advice=SkylakeX
    fi
    if [ "$advice" ]; then
        printf 'OPENBLAS_CORETYPE ?= %s\nexport OPENBLAS_CORETYPE\n' "$advice" >> "$work/vars"
        echo "found: OpenBLAS, which does not know this processor; what make runs gets OPENBLAS_CORETYPE=$advice"
    else
        echo "found: OpenBLAS"
    fi
elif [ "$BLAS" = 1 ]; then
    missing OpenBLAS "Install it (Debian: libopenblas-openmp-dev; Homebrew: openblas)."
else
    echo "found: no OpenBLAS (Debian: libopenblas-openmp-dev): matrix products are three plain loops, far slower"
fi

# CUDA needs nvcc, cuBLASLt and NCCL, but no GPU.
no_cuda() {
    if [ "$CUDA" = 1 ]; then missing "CUDA: $1" "$2"; fi
    echo "found: no CUDA ($1); the suite is built for the CPU"
}
nccl_include="${NCCL_HOME:+-isystem $NCCL_HOME/include}"
nccl_lib="${NCCL_HOME:+-L$NCCL_HOME/lib -Wl,-rpath,$NCCL_HOME/lib}"
cuda_include="-isystem $CUDA_HOME/include $nccl_include"
cuda_libs="$nccl_lib -L$CUDA_HOME/lib64 -Wl,-rpath,$CUDA_HOME/lib64 -L$CUDA_HOME/lib -Wl,-rpath,$CUDA_HOME/lib -lcublasLt -lnccl -lcudart -lstdc++"
if [ "$CUDA" = 0 ]; then
    echo "found: CUDA switched off"
elif [ ! -x "$CUDA_HOME/bin/nvcc" ]; then
    no_cuda "no nvcc in $CUDA_HOME/bin" "Install the CUDA toolkit, or set CUDA_HOME."
elif ! try "$CC" '#include <cublasLt.h>
#include <cuda_runtime.h>
#include <nccl.h>
int main(void) { int v; cublasLtHandle_t h; return cudaRuntimeGetVersion(&v) || ncclGetVersion(&v) || cublasLtCreate(&h); }' \
    $cuda_include $cuda_libs; then
    no_cuda "nvcc is there, but cuBLASLt and NCCL do not link" "Install NCCL's development files, or set NCCL_HOME."
else
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | tr -d . | grep -m1 -x '[0-9]*')
    if [ -n "$capability" ]; then
        echo "found: CUDA ($CUDA_HOME), NCCL, and a GPU of compute capability $capability"
    else
        echo "found: CUDA ($CUDA_HOME), NCCL, and no GPU: everything is compiled, and runs on the CPU"
    fi
    arch=${capability:-90}
    [ "$arch" = 90 ] && arch=90a
    {
        echo "HAVE_CUDA := 1"
        echo "CUDA_INCLUDES := $cuda_include"
        echo "CUDA_LIBS := $cuda_libs"
        echo "FOUND_GENCODE := -gencode=arch=compute_$arch,code=sm_$arch"
    } >> "$work/vars"
fi
mv "$work/vars" "$out"
