package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestAgent builds an image around a C program and reads it back.
func TestAgent(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("gcc", "-x", "c", "-o", program, "-", "-lm")
	cmd.Stdin = strings.NewReader(`#include <stdio.h>
#include <unistd.h>
int main(void) { printf("%d %d\n", getuid(), access("/usr/bin/gpu-feature-discovery", X_OK)); return 0; }
`)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	img, err := Agent("localhost/gpu-labeller:v1.2.3", program, "v1.2.3", "abc", time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	var first, second bytes.Buffer
	for _, w := range []io.Writer{&first, &second} {
		if _, err := img.WriteTo(w); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two images of the same files differ")
	}

	layout := untar(t, &first, "")
	var index struct {
		Manifests []struct {
			Digest      string
			Annotations map[string]string
		}
	}
	decode(t, layout["index.json"], &index)
	if name := index.Manifests[0].Annotations["io.containerd.image.name"]; name != "localhost/gpu-labeller:v1.2.3" {
		t.Errorf("the image is called %q", name)
	}
	blob := func(digest string) []byte { return layout["blobs/sha256/"+strings.TrimPrefix(digest, "sha256:")] }
	var manifest struct {
		Config struct{ Digest string }
		Layers []struct{ Digest string }
	}
	decode(t, blob(index.Manifests[0].Digest), &manifest)
	var config struct {
		Config struct {
			User       string
			Entrypoint []string
			Labels     map[string]string
		}
		Rootfs struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	decode(t, blob(manifest.Config.Digest), &config)
	if config.Config.User != "0:0" || config.Config.Labels["org.opencontainers.image.version"] != "v1.2.3" {
		t.Errorf("configuration: %+v", config.Config)
	}
	z, err := gzip.NewReader(bytes.NewReader(blob(manifest.Layers[0].Digest)))
	if err != nil {
		t.Fatal(err)
	}
	layer, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if digest(layer) != config.Rootfs.DiffIDs[0] {
		t.Error("diff_ids is not the digest of the layer")
	}

	// What is in it is all that the program needs.
	root := t.TempDir()
	files := untar(t, bytes.NewReader(layer), root)
	if files["usr/bin/gpu-labeller"] == nil {
		t.Error("no /usr/bin/gpu-labeller")
	}
	if os.Geteuid() != 0 {
		t.Log("not run: changing the root needs root")
		return
	}
	if err := os.Chmod(filepath.Dir(root), 0o755); err != nil {
		t.Fatal(err)
	}
	run := exec.Command(config.Config.Entrypoint[0])
	run.Dir = "/"
	run.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	out, err := run.CombinedOutput()
	if err != nil || string(out) != "65532 0\n" {
		t.Errorf("it says %q, %v", out, err)
	}
}

func TestWrongFiles(t *testing.T) {
	for want, files := range map[string][]File{
		"clean, absolute path": {{Path: "etc/passwd"}},
		"there twice":          {{Path: "/a"}, {Path: "/b"}, {Path: "/a"}},
	} {
		if _, err := (&Image{Name: "x:y", Files: files}).WriteTo(io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got error %v, want %q in it", files, err, want)
		}
	}
	for _, name := range []string{"", "gpu-labeller", "gpu-labeller:(devel)", "x:y z"} {
		if _, err := (&Image{Name: name}).WriteTo(io.Discard); err == nil {
			t.Errorf("an image may be called %q", name)
		}
	}
	if _, err := Libraries("/nowhere"); err == nil {
		t.Error("no error for a program that is not there")
	}
}

// untar returns the files of an archive, and writes them below a folder unless that is
// empty.
func untar(t *testing.T, r io.Reader, folder string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(folder, h.Name)
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = content
		if folder == "" {
			continue
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.Mkdir(path, 0o755)
		case tar.TypeSymlink:
			err = os.Symlink(h.Linkname, path)
		default:
			err = os.WriteFile(path, content, h.FileInfo().Mode())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func decode(t *testing.T, content []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(content, into); err != nil {
		t.Fatalf("%v in %q", err, content)
	}
}
