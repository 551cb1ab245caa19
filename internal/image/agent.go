package image

import (
	"os"
	"time"
)

// Source is where the project is, in an image's labels.
const Source = "https://github.com/gpu-labeller/gpu-labeller"

// Agent returns the agent's image: the program, by its name and by GPU Feature
// Discovery's, its loader and C library, and nothing else that runs. It is the
// Dockerfile's image, of this machine's files.
func Agent(name, program, version, revision string, created time.Time) (*Image, error) {
	// What NVML needs beside libc, which is all that the program needs.
	files, err := Libraries(program, "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1")
	if err != nil {
		return nil, err
	}
	binary, err := FromDisk(program, "/usr/bin/gpu-labeller", 0o755)
	if err != nil {
		return nil, err
	}
	files = append(files, binary,
		// NVIDIA's config-manager signals the process of this name.
		File{Path: "/usr/bin/gpu-feature-discovery", Link: "gpu-labeller"},
		File{Path: "/etc/passwd", Mode: 0o644, Content: []byte("root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n")},
		File{Path: "/etc/group", Mode: 0o644, Content: []byte("root:x:0:\nnonroot:x:65532:\n")},
	)
	// NVIDIA's runtime looks which distribution's folders its libraries go to.
	for _, path := range []string{"/etc/debian_version", "/etc/os-release"} {
		file, err := FromDisk(path, path, 0o644)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return &Image{
		Name: name, Files: files, Created: created,
		// As in the Dockerfile, which says why.
		User: "0:0", Env: []string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"},
		Entrypoint: []string{"/usr/bin/gpu-labeller"},
		Labels: map[string]string{
			"org.opencontainers.image.title":       "gpu-labeller",
			"org.opencontainers.image.description": "Labels Kubernetes nodes with the GPUs that they have",
			"org.opencontainers.image.source":      Source,
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.version":     version,
			"org.opencontainers.image.revision":    revision,
			"org.opencontainers.image.created":     created.UTC().Format(time.RFC3339),
		},
	}, nil
}
