# make help lists what there is to make.

# --- settings: change them on the command line, make PRECISION=fp64 ---

PRECISION ?=# fp32 (default) | fp64 | bf16 (computes on GPUs only; default where there is a GPU)
DEBUG     ?= 0# 1: -O0 -g3, collectives compared before they start, fresh memory filled with NaN
SAN       ?=# address,undefined
BUGS      ?= 0# 1: knows --bug NAME
BLAS      ?= auto# 1: must be there; 0: three plain loops; auto: if it is there, saying so
CUDA      ?= auto# 1: must be there; 0: CPU only; auto: if nvcc and NCCL are there, saying so
V         ?= 0# 1: show commands
NP        ?= 4# ranks of make run-* and make gdb
RANK      ?= 0# the rank that make gdb steps
PROGRAM   ?= tiny-ddp# what make gdb steps
ARGS      ?=# further flags for make run-*, make gdb
SEED      ?=# of make grid and make quiz
SRC       :=# a file to build and test in place of a scheme's own: make test-ddp, test-fsdp, test-megatron, test-cp, test-moe, test-hybrid

CC        ?= cc
MPI_HOME  ?=
MPICC     ?= $(if $(MPI_HOME),$(MPI_HOME)/bin/)mpicc
MPIRUN    ?= $(if $(MPI_HOME),$(MPI_HOME)/bin/)mpirun
CUDA_HOME ?= /usr/local/cuda
NCCL_HOME ?=# where NCCL is, if not with CUDA or the system
NVCC_GENCODE ?=# -gencode=arch=compute_90a,code=sm_90a; by default that of the GPU that is there
WARNINGS  ?= -Wall -Wextra -Wshadow -Wstrict-prototypes -Werror $(if $(findstring clang,$(CC)),-Wno-pass-failed)
OPTIMIZE  ?= $(if $(filter 1,$(DEBUG)),-O0 -g3,-O2 -g)
KERNELS   ?= $(if $(filter 1,$(DEBUG)),-O0 -g3,-O3 -march=native -fno-math-errno -fno-trapping-math $(WIDE_VECTORS))# for common/kernels/cpu

# ------------------------------------------------------------------------------------------------------------------

TRAINERS := tiny-ddp tiny-fsdp tiny-megatron tiny-cp tiny-moe tiny-hybrid
WIDE_VECTORS := $(if $(filter x86_64,$(shell uname -m)),-mprefer-vector-width=512)# no effect without AVX-512

export OMPI_MCA_rmaps_base_oversubscribe := 1# more ranks than cores is normal here
export OMPI_MCA_mpi_yield_when_idle := 1# and then a waiting rank must not hold its core
export OMPI_MCA_hwloc_base_binding_policy := none# a single rank uses all cores
ifeq ($(shell id -u),0)
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
endif

# The compiler that mpicc calls: one for all objects, and for the OpenMP that they are linked with.
export OMPI_CC := $(CC)
export MPICH_CC := $(CC)

one_of = $(if $(filter-out $(2),$($(1))),$(error $(1)=$($(1)): must be one of $(2)))
$(foreach setting,DEBUG BUGS V,$(call one_of,$(setting),0 1))
$(foreach setting,BLAS CUDA,$(call one_of,$(setting),auto 0 1))
$(call one_of,PRECISION,fp32 fp64 bf16)

.DEFAULT_GOAL := all
.DELETE_ON_ERROR: # what a full disk left half written is not up to date

# deps comes first; the other goals then run in a make of their own, which finds what deps installed.
ifneq ($(filter deps,$(MAKECMDGOALS)),)
OTHERS := $(filter-out deps,$(MAKECMDGOALS))
.PHONY: deps after-deps $(OTHERS)
deps:
	@sh common/tools/deps.sh
after-deps: deps
	@+$(MAKE) --no-print-directory $(OTHERS)
$(OTHERS): after-deps ;
else

FOUND := build/found-$(shell echo '$(CC) $(MPICC) $(BLAS) $(CUDA) $(CUDA_HOME) $(NCCL_HOME)' | cksum | cut -d' ' -f1).mk
# What this machine has; not asked for by goals that compile nothing.
HAVE_CUDA :=
HAVE_BLAS := # both come from this file alone, not from the environment of a make above
ifneq ($(filter-out clean help format,$(or $(MAKECMDGOALS),all)),)
include $(FOUND)
$(FOUND): common/tools/probe.sh Makefile
	@CC="$(CC)" MPICC="$(MPICC)" BLAS="$(BLAS)" CUDA="$(CUDA)" CUDA_HOME="$(CUDA_HOME)" NCCL_HOME="$(NCCL_HOME)" \
	    sh common/tools/probe.sh $@
endif

# A GPU, if this build may use one. bf16 is the default where there is one, but not of builds to look into.
gpu = $(if $(HAVE_CUDA),$(shell sh common/tools/gpus | head -1))
DEFAULT_PRECISION = $(if $(or $(filter 1,$(DEBUG) $(BUGS)),$(SAN),$(SRC)),fp32,$(if $(gpu),bf16,fp32))
EXACT_PRECISION := $(or $(PRECISION),fp64)# of tests against a single device, unless another was asked for
override PRECISION := $(or $(PRECISION),$(DEFAULT_PRECISION))
variant = $(1)$(if $(filter 1,$(DEBUG)),-debug)$(if $(SAN),-san)$(if $(filter 1,$(BUGS)),-bugs)$(if $(filter 0,$(BLAS)),-noblas)$(if $(SRC),-mine)
VARIANT := $(call variant,$(PRECISION))
OUT := build/$(VARIANT)
OBJ := $(OUT)/obj
Q := $(if $(filter 1,$(V)),,@)

DEFINES := -DPRECISION_$(shell echo $(PRECISION) | tr a-z A-Z) -DTEXT_ROOT='"$(CURDIR)/common"' \
           $(if $(filter 1,$(DEBUG)),-DDEBUG) $(if $(filter 1,$(BUGS)),-DBUGS) $(if $(HAVE_BLAS),-DHAVE_BLAS) $(if $(HAVE_CUDA),-DHAVE_CUDA)
SANITIZE := $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all)
CFLAGS := -std=gnu11 $(OPTIMIZE) -fno-omit-frame-pointer $(WARNINGS) $(SANITIZE) $(DEFINES) -Icommon $(addprefix -I,$(TRAINERS)) -MMD -MP
LIBS := $(BLAS_LIBS) $(CUDA_LIBS) -lcjson $(OPENMP) -lpthread -lm
GENCODE := $(or $(NVCC_GENCODE),$(FOUND_GENCODE))
HAVE_FLASH := $(if $(filter bf16,$(PRECISION)),$(findstring sm_90a,$(GENCODE)))# wgmma is there on sm_90a alone
NVCCFLAGS := $(if $(HAVE_FLASH),-DHAVE_FLASH) -std=c++17 $(if $(filter 1,$(DEBUG)),-O0 -g -G,-O3 -g -lineinfo) $(GENCODE) $(DEFINES) -Icommon \
             -Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror,-fno-omit-frame-pointer -MMD -MP

CPU := common/kernels/cpu
GPU := common/kernels/cuda
CPU_KERNELS := $(filter-out $(if $(HAVE_BLAS),%/no_blas.c,%_blas.c %_blocks.c),$(wildcard $(CPU)/*.c)) $(if $(HAVE_BLAS),,$(CPU)/no_blas.c)
WITHOUT_CUDA := common/kernels/no_cuda.c common/comm/no_nccl.c
WITH_CUDA := common/kernels/marks_cuda.c common/comm/comm_nccl.c common/comm/comm_host_path.c
COMMON := $(filter-out $(WITHOUT_CUDA) $(WITH_CUDA) common/kernels/no_cpu.c,$(wildcard common/*/*.c)) \
          $(if $(filter bf16,$(PRECISION)),common/kernels/no_cpu.c,$(CPU_KERNELS)) $(if $(HAVE_CUDA),$(WITH_CUDA),$(WITHOUT_CUDA))
CUDA_KERNELS := $(if $(HAVE_CUDA),$(filter-out $(if $(HAVE_FLASH),,$(GPU)/attention_flash% $(GPU)/grouped_tensor%),$(wildcard $(GPU)/*.cu)))
# What each trainer links beside its main.c; a student's SRC in place of what it REPLACES.
mine = $(if $(SRC),$(patsubst $(or $(REPLACES),tiny-ddp/ddp.c),$(SRC),$(1)),$(1))
SOURCES_tiny-ddp := $(call mine,tiny-ddp/ddp.c tiny-ddp/ddp_plan.c)
SOURCES_tiny-fsdp := $(call mine,$(patsubst %,tiny-fsdp/%.c,sharding sharding_plan sharding_show zero1 zero2 zero3 fsdp)) $(SOURCES_tiny-ddp)
SOURCES_tiny-megatron := $(call mine,$(patsubst %,tiny-megatron/%.c,tensor_parallel tensor_plan)) $(SOURCES_tiny-ddp)
SOURCES_tiny-cp := $(call mine,$(patsubst %,tiny-cp/%.c,context_parallel context_plan ring allgather ulysses)) $(SOURCES_tiny-ddp)
SOURCES_tiny-moe := $(call mine,$(patsubst %,tiny-moe/%.c,expert_parallel expert_plan)) $(SOURCES_tiny-ddp)
SOURCES_tiny-hybrid := $(sort $(call mine,tiny-hybrid/hybrid.c tiny-hybrid/hybrid_plan.c) $(SOURCES_tiny-fsdp) $(SOURCES_tiny-megatron) $(SOURCES_tiny-cp) $(SOURCES_tiny-moe))
SCHEMES := $(sort $(foreach t,$(TRAINERS),$(SOURCES_$t)))
# The tests whose first line names this build.
TESTS := $(basename $(notdir $(shell grep -lE '^/\* ranks: .* builds:.* $(VARIANT)( |$$)' tests/test_*.c))) $(if $(filter bf16,$(VARIANT)),,hang read_json)
objects = $(patsubst %.c,$(OBJ)/%.o,$(1))

.SECONDARY:
.PHONY: all programs demo drift quiz test test-ddp test-fsdp test-megatron test-cp test-moe test-hybrid compare grid bench gdb format lint clean help FORCE $(TRAINERS) $(addprefix run-,$(TRAINERS))
all: $(TRAINERS)

# --- compiling: every object depends on the flags it was made with, so builds never mix ---

$(OUT)/flags: FORCE
	@mkdir -p $(OUT)
	@echo '$(CC) $(MPICC) $(CFLAGS) $(KERNELS) $(NVCCFLAGS) $(LIBS) $(SRC)' | cmp -s - $@ || echo '$(CC) $(MPICC) $(CFLAGS) $(KERNELS) $(NVCCFLAGS) $(LIBS) $(SRC)' > $@

$(OBJ)/$(CPU)/exp.o: private FAST := -ffast-math
$(OBJ)/$(CPU)/%.o: $(CPU)/%.c $(OUT)/flags
	@mkdir -p $(@D)
	@echo "  CC      $@"
	$(Q)$(CC) $(CFLAGS) $(KERNELS) $(FAST) $(OPENMP) -c $< -o $@

$(OBJ)/common/comm/comm_mpi.o: common/comm/comm_mpi.c $(OUT)/flags
	@mkdir -p $(@D)
	@echo "  MPICC   $@"
	$(Q)$(MPICC) $(CFLAGS) -c $< -o $@

$(OBJ)/%.o: %.c $(OUT)/flags
	@mkdir -p $(@D)
	@echo "  CC      $@"
	$(Q)$(CC) $(CFLAGS) -c $< -o $@

$(patsubst %.c,$(OBJ)/%.o,$(WITH_CUDA)) $(OBJ)/common/comm/trace.o $(OBJ)/tests/test_cuda_model.o: private CFLAGS += $(CUDA_INCLUDES)
$(OBJ)/$(GPU)/%.o: $(GPU)/%.cu $(OUT)/flags
	@mkdir -p $(@D)
	@echo "  NVCC    $@"
	$(Q)$(CUDA_HOME)/bin/nvcc $(NVCCFLAGS) -c $< -o $@

$(OUT)/libcommon.a: $(call objects,$(COMMON)) $(patsubst %.cu,$(OBJ)/%.o,$(CUDA_KERNELS))
	$(Q)rm -f $@ && ar rcs $@ $^

define link
@echo "  LINK    $@"
$(Q)$(MPICC) $(OPTIMIZE) $(SANITIZE) $(filter %.o,$^) $(filter %.a,$^) $(LIBS) $(1) -o $@
endef

# --- trainers; the default build also puts them into their folders ---

define trainer
$(OUT)/$(1): $(call objects,$(1)/main.c $(SOURCES_$(1))) $(OUT)/libcommon.a
	$$(call link)
endef
$(foreach t,$(TRAINERS),$(eval $(call trainer,$t)))

$(TRAINERS): %: $(OUT)/%
	@$(if $(filter $(DEFAULT_PRECISION),$(VARIANT)),cp --remove-destination $< $@/$@ && echo "built: $@/$@",echo "built: $<")

$(addprefix run-,$(TRAINERS)): run-%: %
	$(MPIRUN) -n $(NP) $(OUT)/$* $(ARGS)

# Eight ranks, all schemes at once: a proof in fp64, then a minute of training.
PLAIN := DEBUG=0 BUGS=0 SAN= SRC= BLAS=auto
MESH := --fsdp 2 --cp 2 --tp 2 --ep 4
demo:
	@$(MAKE) --no-print-directory $(PLAIN) PRECISION=fp64 build/fp64/tiny-hybrid
	@$(MAKE) --no-print-directory $(PLAIN) PRECISION=fp32 build/fp32/tiny-hybrid
	$(MPIRUN) -n 8 build/fp64/tiny-hybrid $(MESH) --model nano-moe --steps 3 --verify
	$(MPIRUN) -n 8 build/fp32/tiny-hybrid $(MESH) --model demo-moe --steps 200 --sample 300

# How far rounding alone takes a mesh from the fp64 run: STEPS=, MODEL=.
drift:
	@for precision in fp64 fp32 $(if $(gpu),bf16); do $(MAKE) --no-print-directory $(PLAIN) PRECISION=$$precision build/$$precision/tiny-hybrid || exit 1; done
	@$(MAKE) --no-print-directory $(PLAIN) PRECISION=fp64 build/fp64/dump_distance
	@MPIRUN="$(MPIRUN)" bash tests/bench/drift.sh $(ARGS)

# Looking for a hidden bug: SEED=7 hides one, and the same one each time.
quiz:
	@$(MAKE) --no-print-directory DEBUG=0 BUGS=1 SAN= SRC= BLAS=auto CUDA=0 PRECISION=fp64 build/fp64-bugs/tiny-hybrid
	@MPIRUN="$(MPIRUN)" MESH="$(MESH)" SEED="$(SEED)" bash common/tools/quiz.sh

# --- tests: cmocka, in several builds side by side ---

TEST_HELPERS := tests/testing.c $(if $(filter bf16,$(PRECISION)),,tests/gradient.c tests/training.c tests/case.c tests/case_groups.c tests/run_case.c tests/compare.c tests/capture.c tests/planted.c $(SCHEMES))
$(OUT)/test_%: $(OBJ)/tests/test_%.o $(call objects,$(TEST_HELPERS)) $(OUT)/libcommon.a
	$(call link,-lcmocka)

# The CPU's kernels in fp64, under one name of their own, beside this build's.
REFERENCE := $(patsubst $(CPU)/%.c,$(OBJ)/reference/%.o,$(CPU_KERNELS))
$(OBJ)/reference/exp.o: private FAST := -ffast-math
$(OBJ)/reference/%.o: $(CPU)/%.c $(OUT)/flags
	@mkdir -p $(@D)
	$(Q)$(CC) $(subst -DPRECISION_BF16,-DPRECISION_FP64,$(subst -DPRECISION_FP32,-DPRECISION_FP64,$(CFLAGS))) $(KERNELS) $(FAST) $(OPENMP) -c $< -o $@
$(OBJ)/reference.o: $(REFERENCE)
	@echo "  LD      $@"
	$(Q)ld -r $^ -o $@ && objcopy --redefine-sym kernels_cpu=reference_kernels $@ && objcopy --keep-global-symbol=reference_kernels $@
$(OUT)/test_cuda $(OUT)/test_cuda_attention $(OUT)/test_cuda_moe: $(OBJ)/reference.o
$(OUT)/test_cuda $(OUT)/test_cuda_attention $(OUT)/test_cuda_model $(OUT)/test_cuda_moe: $(OBJ)/tests/both.o
$(OUT)/test_exchange $(OUT)/test_cuda_comm: $(OBJ)/tests/exchange.o

$(OUT)/hang $(OUT)/read_json: $(OUT)/%: $(OBJ)/tests/%.o $(OUT)/libcommon.a
	$(call link)

programs: $(TRAINERS) $(addprefix $(OUT)/,$(TESTS))

BUILDS_TESTED := "PRECISION=fp32" "PRECISION=fp64" "PRECISION=fp64 BUGS=1 CUDA=0" "PRECISION=fp32 BUGS=1 CUDA=0" \
                 "PRECISION=fp64 DEBUG=1 CUDA=0" "PRECISION=fp32 SAN=address,undefined CUDA=0" "PRECISION=fp32 BLAS=0 CUDA=0"
# As many compilers as cores, unless make was told how many.
JOBS = $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(shell getconf _NPROCESSORS_ONLN))
test:
	@for build in $(BUILDS_TESTED); do $(MAKE) --no-print-directory $(JOBS) $$build programs || exit 1; done
	@test -z "$(HAVE_CUDA)" || $(MAKE) --no-print-directory $(JOBS) PRECISION=bf16 programs
	@test -z "$(gpu)" || $(MAKE) --no-print-directory $(JOBS) PRECISION=bf16 BUGS=1 all
	@HAVE_CUDA="$(HAVE_CUDA)" MPIRUN="$(MPIRUN)" bash tests/run.sh; status=$$?; $(if $(gpu),$(MAKE) --no-print-directory all > /dev/null;) exit $$status

# N configurations of tiny-hybrid; without N ten times as many configurations of everything as in the tests.
ifneq ($(N),)
whole = $(if $(shell echo '$($(1))' | grep -vxE '[0-9]{0,8}'),$(error $(1)=$($(1)): must be a whole number))
grid:
	$(foreach setting,N SEED FIRST,$(call whole,$(setting)))
	@$(MAKE) --no-print-directory $(PLAIN) CUDA=0 PRECISION=fp64 build/fp64/test_hybrid
	@N=$(N) SEED=$(or $(SEED),1) FIRST=$(or $(FIRST),0) TEST_SECONDS=0 $(MPIRUN) -q -n 16 build/fp64/test_hybrid
else
grid:
	@for build in $(BUILDS_TESTED); do $(MAKE) --no-print-directory $(JOBS) $$build programs || exit 1; done
	@test -z "$(HAVE_CUDA)" || $(MAKE) --no-print-directory $(JOBS) PRECISION=bf16 programs
	@GRID=10 HAVE_CUDA="$(HAVE_CUDA)" MPIRUN="$(MPIRUN)" bash tests/run.sh
endif

# A student's file in place of what it REPLACES, with the DEBUG, SAN and BUGS that were asked for; TEST=NAME: one test of them.
test-ddp: REPLACED := tiny-ddp/ddp.c
test-fsdp: REPLACED := tiny-fsdp/fsdp.c
test-megatron: REPLACED := tiny-megatron/tensor_parallel.c
test-cp: REPLACED := tiny-cp/ring.c
test-moe: REPLACED := tiny-moe/expert_parallel.c
test-hybrid: REPLACED := tiny-hybrid/hybrid.c
test-ddp test-fsdp test-megatron test-cp test-moe test-hybrid: private AGAIN = make $@ $(filter-out TEST=%,$(MAKEOVERRIDES))
test-ddp test-fsdp test-megatron test-cp test-moe test-hybrid: test-%:
	@test -z "$(SRC)" || test -f "$(SRC)" || { echo "SRC=$(SRC): no such file"; exit 2; }
	@test $(EXACT_PRECISION) != bf16 || { echo "PRECISION=bf16: these tests are for fp64 and fp32"; exit 2; }
	@$(MAKE) --no-print-directory PRECISION=$(EXACT_PRECISION) CUDA=$(if $(findstring command,$(origin CUDA)),$(CUDA),0) REPLACES=$(REPLACED) build/$(call variant,$(EXACT_PRECISION))/test_$*
	@AGAIN="$(AGAIN)" MPIRUN="$(MPIRUN)" bash tests/run.sh $(call variant,$(EXACT_PRECISION)) test_$*

# All strategies of tiny-fsdp on one model: a table and a picture.
compare: tiny-fsdp
	@PROGRAM=$(OUT)/tiny-fsdp MPIRUN="$(MPIRUN)" bash tiny-fsdp/compare.sh $(ARGS)

bench:
	@$(MAKE) --no-print-directory $(PLAIN) PRECISION=fp32 build/fp32/tiny-ddp build/fp32/gemm_rate
	@test -z "$(gpu)" || $(MAKE) --no-print-directory $(PLAIN) PRECISION=bf16 build/bf16/tiny-ddp build/bf16/device_rate
	@MPIRUN="$(MPIRUN)" bash tests/bench/bench.sh
	@test -z "$(gpu)" || bash tests/bench/gpu.sh
	@test "$(if $(gpu),$(shell sh common/tools/gpus | wc -l),0)" -lt 2 || { $(MAKE) --no-print-directory $(PLAIN) PRECISION=bf16 all && MPIRUN="$(MPIRUN)" bash tests/bench/gpus.sh; }

$(OUT)/gemm_rate $(OUT)/device_rate $(OUT)/attention_rate $(OUT)/grouped_rate $(OUT)/dump_distance: $(OUT)/%: $(OBJ)/tests/bench/%.o $(OUT)/libcommon.a
	$(call link)

# Goals that run a make of their own come after all others that are asked for, lest both write the same objects.
# Nor do they run beside each other, or clean beside anything.
OWN := test grid demo drift quiz bench test-ddp test-fsdp test-megatron test-cp test-moe test-hybrid gdb
$(filter $(OWN),$(MAKECMDGOALS)): | $(filter-out $(OWN) clean,$(MAKECMDGOALS))
ifneq ($(filter clean,$(MAKECMDGOALS))$(word 2,$(filter $(OWN),$(MAKECMDGOALS))),)
.NOTPARALLEL:
endif

# --- looking ---

# NP ranks of the debug build on the CPU, one of them in gdb on this terminal.
GDB_PRECISION = $(if $(filter bf16,$(PRECISION)),fp32,$(PRECISION))
gdb: override DEBUG := 1
gdb:
	@command -v gdb > /dev/null || { echo "make gdb: no gdb here (Debian: apt-get install gdb)" >&2; exit 127; }
	@test $(RANK) -lt $(NP) || { echo "RANK=$(RANK): must be less than NP=$(NP)" >&2; exit 2; }
	@$(MAKE) --no-print-directory PRECISION=$(GDB_PRECISION) DEBUG=1 $(PROGRAM)
	-@GDB_RANK=$(RANK) $(if $(filter-out 1,$(NP)),$(MPIRUN) -q --stdin $(RANK) -n $(NP)) common/tools/gdb-rank build/$(call variant,$(GDB_PRECISION))/$(PROGRAM) --device cpu --timeout 0 $(ARGS)

SOURCES = $(shell git ls-files '*.c' '*.h')
format:
	clang-format -i $(SOURCES)
lint:
	clang-format --dry-run -Werror $(SOURCES)
	cppcheck --quiet --error-exitcode=1 --enable=warning --suppress=invalidFunctionArg -Icommon $(addprefix -I,$(TRAINERS)) -DPRECISION_FP32 -DHAVE_BLAS -DTEXT_ROOT='""' common $(TRAINERS)

clean:
	rm -rf build $(foreach t,$(TRAINERS),$t/$t)

help:
	@echo "settings, as in make PRECISION=fp64:"
	@sed -n '/^# ----/q; s/^\([A-Z_]*\) *[?:]= *\([^#$$]*\)# *\(.*\)/  \1=\2\t\3/p' Makefile | expand -t 20
	@echo "goals:"
	@echo "  all         every trainer, into its folder"
	@echo "  deps        install what is needed (apt)"
	@echo "  demo        eight ranks train a small mixture of experts on this repository's text, with all schemes at once,"
	@echo "              after a proof in fp64 that they equal a single device"
	@echo "  test        build everything and run every test"
	@echo "  grid        N= random configurations of tiny-hybrid, SEED= others; without N ten times as many of all tests"
	@echo "  drift       how far five meshes are from the fp64 run, by rounding alone"
	@echo "  quiz        a hidden bug, chosen by SEED=: which one is it?"
	@echo "  test-ddp    test SRC=my_ddp.c in place of tiny-ddp/ddp.c; test-fsdp: of tiny-fsdp/fsdp.c;"
	@echo "              test-megatron: of tiny-megatron/tensor_parallel.c; test-cp: of tiny-cp/ring.c;"
	@echo "              test-moe: of tiny-moe/expert_parallel.c; test-hybrid: of tiny-hybrid/hybrid.c;"
	@echo "              TEST=NAME runs one of the tests alone"
	@echo "  compare     every strategy of tiny-fsdp on one model: a table and a picture"
	@echo "  bench       tokens/s and memory beside the speed of BLAS"
	@echo "  run-tiny-ddp, run-tiny-fsdp, run-tiny-megatron, run-tiny-cp, run-tiny-moe, run-tiny-hybrid    with NP= ranks and ARGS="
	@echo "  gdb         one rank in gdb: with PROGRAM=, NP=, RANK=, ARGS="
	@echo "  format, lint, clean"

-include $(shell find $(OBJ) -name '*.d' 2>/dev/null)
endif
