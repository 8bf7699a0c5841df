# Compiles upstream's sources of libllama and of its common library several at once, which takes half the time.
# Upstream does so with its models only. For llama.cpp's own CMakeLists.txt: -DCMAKE_PROJECT_INCLUDE=together.cmake.
function(ggml_py_compile_together folder)
    get_target_property(sources llama SOURCES)
    list(FILTER sources INCLUDE REGEX "^[a-z][a-z0-9-]*\\.cpp$")
    list(TRANSFORM sources PREPEND ${folder}/src/)
    set_property(SOURCE ${sources} TARGET_DIRECTORY llama PROPERTY SKIP_UNITY_BUILD_INCLUSION OFF)
    set_target_properties(llama-common PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
    # It specialises templates that the others use.
    set_property(SOURCE ${folder}/common/json.cpp TARGET_DIRECTORY llama-common
        PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

if (PROJECT_NAME STREQUAL "llama.cpp" AND PROJECT_IS_TOP_LEVEL)
    cmake_language(DEFER DIRECTORY ${PROJECT_SOURCE_DIR} CALL ggml_py_compile_together ${PROJECT_SOURCE_DIR})
endif()
