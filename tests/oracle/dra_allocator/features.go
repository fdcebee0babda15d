//go:build !fractional

package main

import "k8s.io/dynamic-resource-allocation/structured"

// features are those that are on by default in Kubernetes 1.36.
func features() structured.Features {
	return structured.Features{
		AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true,
		PartitionableDevices: true, PrioritizedList: true,
	}
}
