// Command dra_allocator answers what kube-scheduler's own allocator would do.
//
// It reads one case a line from standard input, as Kubernetes' own JSON, and writes one answer a line:
//
//	{"slices": [ResourceSlice], "classes": [DeviceClass], "allocated": [ResourceClaim], "claims": [ResourceClaim]}
//	{"claims": [[DeviceRequestAllocationResult, …], …], "ms": …} | {"claims": null, "ms": …} | {"error": "…", "ms": …}
//
// A null says that the claims cannot be allocated on the node; an error is one that ends the whole scheduling
// attempt, as a search does that takes longer than a filter may. Share ids are left out: they are random. The
// milliseconds are processor time of the thread that searched.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

const (
	node          = "node"
	filterTimeout = 10 * time.Second // DynamicResourcesArgs.filterTimeout, unless configured
)

type question struct {
	Slices    []*resourceapi.ResourceSlice `json:"slices"`
	Classes   []*resourceapi.DeviceClass   `json:"classes"`
	Allocated []*resourceapi.ResourceClaim `json:"allocated"`
	Claims    []*resourceapi.ResourceClaim `json:"claims"`
}

type answer struct {
	Claims [][]resourceapi.DeviceRequestAllocationResult `json:"claims"`
	Error  string                                        `json:"error,omitempty"`
	Millis float64                                       `json:"ms"`
}

type classes map[string]*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) {
	var all []*resourceapi.DeviceClass
	for _, class := range c {
		all = append(all, class)
	}
	return all, nil
}

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	if class, found := c[name]; found {
		return class, nil
	}
	return nil, fmt.Errorf("no class %q", name)
}

func main() {
	runtime.LockOSThread()
	selectors := cel.NewCache(1000, cel.Features{EnableConsumableCapacity: true})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<26)
	out := bufio.NewWriter(os.Stdout)
	for lines.Scan() {
		var asked question
		told := answer{}
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		before := used()
		claims, err := allocate(asked, selectors)
		told.Millis = float64((used() - before).Microseconds()) / 1000
		if err != nil {
			told.Error = err.Error()
		}
		for _, claim := range claims {
			for i := range claim.Devices.Results {
				claim.Devices.Results[i].ShareID = nil
			}
			told.Claims = append(told.Claims, claim.Devices.Results)
		}
		line, err := json.Marshal(told)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		out.Write(line)
		out.WriteByte('\n')
		out.Flush()
	}
}

func allocate(asked question, selectors *cel.Cache) ([]resourceapi.AllocationResult, error) {
	known := classes{}
	for _, class := range asked.Classes {
		known[class.Name] = class
	}
	where := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	allocator, err := structured.NewAllocator(
		context.Background(), features(), state(asked.Allocated), known, asked.Slices, selectors)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(context.Background(), filterTimeout)
	defer cancel()
	return allocator.Allocate(limited, where, asked.Claims)
}

// used is this thread's processor time.
func used() time.Duration {
	var spent unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &spent); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	return time.Duration(spent.Nano())
}

// state counts what claims hold as kube-scheduler does, which leaves out what is allocated for administrators.
func state(claims []*resourceapi.ResourceClaim) structured.AllocatedState {
	told := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range claims {
		for _, result := range claim.Status.Allocation.Devices.Results {
			if result.AdminAccess != nil && *result.AdminAccess {
				continue
			}
			device := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			if result.ShareID == nil {
				told.AllocatedDevices.Insert(device)
				continue
			}
			told.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(device, result.ShareID))
			told.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(device, result.ConsumedCapacity))
		}
	}
	return told
}
