#pragma once
#include "../../light_torch.h"
