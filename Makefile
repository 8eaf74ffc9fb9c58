# The commands of the README. Each installs what it needs, asks nothing, and fails loudly. CMake and Ninja do the building.

serve:  ## Build and serve the default model on 127.0.0.1 (flags of millraced: make serve ARGS="--threads 1")
	@scripts/serve.sh $(ARGS)

test:  ## Every test that needs no GPU
	@scripts/test.sh

parity:  ## Regenerate the reference data with transformers and tokenizers, compare it, and run the tests on llama.cpp's files
	@scripts/parity.sh $(ARGS)

fresh-test:  ## Both commands in a new Debian 12 that holds nothing but make; needs root (Ubuntu: make fresh-test ARGS=ubuntu-24.04)
	@scripts/fresh_test.sh $(ARGS)

image-test:  ## The container image built with buildah, and run; needs root
	@scripts/image_test.sh

bench-cpu:  ## Millrace and llama.cpp side by side on this machine, which must be idle (a look: make bench-cpu ARGS=--quick)
	@bench/cpu/run.sh $(ARGS)

gpu-bundle:  ## Everything that a GPU machine without network needs to run the GPU tests and benchmarks (deploy/gpu/README.md)
	@scripts/gpu_bundle.sh

fuzz:  ## Every reader of hostile input under libFuzzer, ASan and UBSan, FUZZ_SECONDS each (1800; a look: make fuzz ARGS=short)
	@scripts/fuzz.sh $(ARGS)

soak:  ## Random clients of both protocols on real servers for half an hour, and what is left after them (a look: make soak ARGS="--minutes 5")
	@scripts/soak.sh soak $(ARGS)

faults:  ## What clients see of kills, full disks, missing memory, clocks that jump and devices that fail, as a table
	@scripts/soak.sh faults $(ARGS)

coverage:  ## The lines of formats, text and server that their C++ tests reach (one folder: make coverage ARGS=text)
	@scripts/coverage.sh $(ARGS)

lint:  ## clang-format on every C++ file, clang-tidy on what changed
	@scripts/lint.sh

clean:  ## Remove the build folders (the cache of the model and of Python packages stays)
	@rm -rf build build-asan build-tsan build-older build-coverage

help:  ## This list
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' Makefile | expand -t 14

.PHONY: serve test parity fresh-test image-test bench-cpu gpu-bundle fuzz soak faults coverage lint clean help
