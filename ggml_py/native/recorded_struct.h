// GP_STRUCT(name, members) declares a struct whose members a record describes: record_names.cpp reads their text.
#pragma once

#ifdef GP_WITH_MEMBERS
#define GP_TEXT_(...) #__VA_ARGS__
#define GP_TEXT(...)  GP_TEXT_(__VA_ARGS__)
#define GP_STRUCT(name, ...) struct name { __VA_ARGS__ }; static const char name##_members[] = GP_TEXT(__VA_ARGS__)
#else
#define GP_STRUCT(name, ...) struct name { __VA_ARGS__ }
#endif
