// Package scale measures what a cluster of many nodes costs the API server: a
// real control plane, N Nodes, and the real agent N times in one process, each
// with its own connection. Only the host below an agent is made up: what a scan
// found of a recorded host, and a fingerprint that moves when the test says so.
//
// It is no part of go test ./...:
//
//	go test -tags scale -run TestScale -v -count=1 -timeout 60m ./test/scale -nodes 250,1000
package scale
