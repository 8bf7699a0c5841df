# Found instead of CMake's own when GGML_PY_OPENBLAS is set: scipy's build of OpenBLAS, whose prefixed
# symbols CMake's search would not recognise.
set(BLAS_FOUND TRUE)
set(BLAS_LIBRARIES ${GGML_PY_OPENBLAS_LIB})
set(BLAS_INCLUDE_DIRS ${GGML_PY_OPENBLAS}/include)
set(BLAS_LINKER_FLAGS "")
