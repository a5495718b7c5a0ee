#pragma once
#include "../../light_cuda.h"
