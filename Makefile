# Convoy: build, test, demonstrate, measure. Each target installs what it needs on Debian (as root or with sudo).

CARGO ?= cargo
DEMO := demo
STATIC_FFMPEG ?= $(HOME)/.cache/convoy/static-ffmpeg

.PHONY: build test demo bench portable clean

build: .setup-build
	$(CARGO) build --release

# Everything that main must pass: format, lints, licences, tests.
test: .setup-test
	.ci/test.sh

# Filters the sample and says where to look.
demo: build
	.ci/demo.sh $(DEMO)

# Speed as ratios: against ffmpeg and OpenCV (CPU), against the device copy and the bus (CUDA).
bench: build .setup-bench
	CONVOY_PYTHON=$${CONVOY_TOOLS:-$$HOME/.cache/convoy/tools}/python/bin/python target/release/convoy bench

# One static binary, dist/convoy (GPL through x264 and x265).
portable: .setup-build
	.ci/static-ffmpeg.sh $(STATIC_FFMPEG)
	CARGO_PROFILE_RELEASE_STRIP=symbols PKG_CONFIG_PATH=$(STATIC_FFMPEG)/lib/pkgconfig RUSTFLAGS="-L native=$(STATIC_FFMPEG)/static" \
	  $(CARGO) build --release --features ffmpeg-static --target-dir target/portable
	mkdir -p dist && cp target/portable/release/convoy dist/convoy
	.ci/check-portable.sh dist/convoy

.PHONY: .setup-build .setup-bench .setup-test
.setup-build:
	@.ci/setup.sh build
.setup-bench:
	@.ci/setup.sh bench
.setup-test:
	@.ci/setup.sh test

clean:
	$(CARGO) clean
	rm -rf dist $(DEMO)
