package nvml

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// profileTable finds the MIG profiles of one GPU's MIG devices. It asks what
// go-nvlib's MigDevice.GetProfile asks, in the same order, but what a GPU answers
// for all its MIG devices only once: a driver takes its time for each call, and
// one MIG device costs up to 40 of them.
type profileTable struct {
	gpu    nvml.Device
	memory uint64 // of the GPU, in bytes; 0 when unknown

	instances []profileID            // profile IDs of GPU instances, by NVML's index
	computes  map[uint32][]profileID // of compute instances, by the ID of their GPU instance's profile
}

type profileID struct {
	id     uint32
	exists bool
}

// profileIndices are NVML_GPU_INSTANCE_PROFILE_*, NVML_COMPUTE_INSTANCE_PROFILE_*
// and NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_*, which make up a MIG profile.
type profileIndices struct{ gpu, compute, engine int }

// of gives the profile of a compute instance; not ok when NVML does not say.
func (t *profileTable) of(gpuInstance, computeInstance int) (at profileIndices, ok bool) {
	gi, ret := t.gpu.GetGpuInstanceById(gpuInstance)
	if ret != nvml.SUCCESS {
		return at, false
	}
	ci, ret := gi.GetComputeInstanceById(computeInstance)
	if ret != nvml.SUCCESS {
		return at, false
	}
	giInfo, ret := gi.GetInfo()
	if ret != nvml.SUCCESS {
		return at, false
	}
	ciInfo, ret := ci.GetInfo()
	if ret != nvml.SUCCESS {
		return at, false
	}
	const engines = nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT
	i, ok := search(&t.instances, giInfo.ProfileId, nvml.GPU_INSTANCE_PROFILE_COUNT, func(i int) (uint32, nvml.Return) {
		info, ret := t.gpu.GetGpuInstanceProfileInfo(i)
		return info.Id, ret
	})
	if !ok {
		return at, false
	}
	if t.computes == nil {
		t.computes = map[uint32][]profileID{}
	}
	compute := func(known *[]profileID) (int, bool) {
		return search(known, ciInfo.ProfileId, nvml.COMPUTE_INSTANCE_PROFILE_COUNT*engines, func(j int) (uint32, nvml.Return) {
			info, ret := gi.GetComputeInstanceProfileInfo(j/engines, j%engines)
			return info.Id, ret
		})
	}
	computes := t.computes[giInfo.ProfileId]
	j, ok := compute(&computes)
	t.computes[giInfo.ProfileId] = computes
	if !ok {
		// Two GPU instances of a profile are not known to differ; but if they do.
		j, ok = compute(new([]profileID))
	}
	return profileIndices{gpu: i, compute: j / engines, engine: j % engines}, ok
}

// search finds the index of an ID, and asks for those that are not known yet.
// Indices that a GPU does not have answer NOT_SUPPORTED or INVALID_ARGUMENT;
// another error ends the search, and is asked for again.
func search(known *[]profileID, id uint32, count int, ask func(int) (uint32, nvml.Return)) (int, bool) {
	for i := range count {
		if i == len(*known) {
			got, ret := ask(i)
			absent := ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT
			if ret != nvml.SUCCESS && !absent {
				return 0, false
			}
			*known = append(*known, profileID{got, !absent})
		}
		if p := (*known)[i]; p.exists && p.id == id {
			return i, true
		}
	}
	return 0, false
}
