# Sourced by scripts that use this checkout's Python package.

# install_package: builds the extension in the build tree of the preset "test",
# where nearly everything exists if the tests ran, and installs it into .venv.
install_package() {
  CXX=c++ .venv/bin/pip install --quiet --no-build-isolation --no-deps \
    --force-reinstall --config-settings=build-dir=build/test \
    --config-settings=cmake.define.BUILD_TESTING=ON \
    --config-settings=cmake.define.HAULWAY_WERROR=ON .
}
