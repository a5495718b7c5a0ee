#pragma once
#include "../light_pybind.h"
