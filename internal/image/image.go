// Package image puts container images together without a daemon, a registry or root:
// one layer over nothing, as a tar file in the OCI image layout. ctr, podman, skopeo
// and docker (25 and newer) import it. The same input gives the same bytes.
package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Image is what goes into the tar file.
type Image struct {
	Name         string // with a tag: localhost/gpu-labeller:test
	Architecture string // as GOARCH; default this machine's
	Files        []File
	Entrypoint   []string
	Env          []string
	User         string // UID:GID; empty for root
	Labels       map[string]string
	Created      time.Time
}

// File is a file or a symbolic link of the image. Folders are made as needed; all is
// root's.
type File struct {
	Path    string // absolute
	Mode    fs.FileMode
	Content []byte
	Link    string // target, if it is a symbolic link
}

// FromDisk is the file at path on this machine, links followed, for the image's
// target.
func FromDisk(path, target string, mode fs.FileMode) (File, error) {
	content, err := os.ReadFile(path)
	return File{Path: target, Mode: mode, Content: content}, err
}

// validName is a name with a tag, as registries take them.
var validName = regexp.MustCompile(`^[a-z0-9][a-z0-9.:/_-]*:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)

// descriptor points to a blob, as in the OCI image specification, v1.1.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

// WriteTo writes the tar file.
func (img *Image) WriteTo(w io.Writer) (int64, error) {
	architecture := img.Architecture
	if architecture == "" {
		architecture = runtime.GOARCH
	}
	if !validName.MatchString(img.Name) {
		return 0, fmt.Errorf("image: name %q: want REPOSITORY:TAG", img.Name)
	}
	layer, err := img.layer()
	if err != nil {
		return 0, err
	}
	var compressed bytes.Buffer
	z := gzip.NewWriter(&compressed)
	_, _ = z.Write(layer) // a Buffer takes everything
	_ = z.Close()

	archive := newArchive(time.Time{})
	blob := func(mediaType string, content []byte) descriptor {
		d := descriptor{MediaType: mediaType, Digest: digest(content), Size: len(content)}
		archive.file("blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:"), 0o644, content)
		return d
	}
	created := img.Created.UTC().Format(time.RFC3339)
	type object = map[string]any
	config := blob("application/vnd.oci.image.config.v1+json", encode(object{
		"created": created, "architecture": architecture, "os": "linux",
		"config": object{
			"Entrypoint": img.Entrypoint, "User": img.User, "Labels": img.Labels, "WorkingDir": "/",
			"Env": append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, img.Env...),
		},
		"rootfs":  object{"type": "layers", "diff_ids": []string{digest(layer)}},
		"history": []object{{"created": created, "created_by": "mkimage"}},
	}))
	manifest := blob("application/vnd.oci.image.manifest.v1+json", encode(object{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config,
		"layers":      []descriptor{blob("application/vnd.oci.image.layer.v1.tar+gzip", compressed.Bytes())},
		"annotations": img.Labels,
	}))
	manifest.Platform = &platform{architecture, "linux"}
	_, tag, _ := strings.Cut(path.Base(img.Name), ":")
	manifest.Annotations = map[string]string{
		"io.containerd.image.name":          img.Name,
		"org.opencontainers.image.ref.name": tag,
	}
	archive.file("index.json", 0o644, encode(object{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []descriptor{manifest},
	}))
	archive.file("oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`))
	content, err := archive.close()
	if err != nil {
		return 0, err
	}
	return bytes.NewReader(content).WriteTo(w)
}

// layer is the file system, as an uncompressed tar.
func (img *Image) layer() ([]byte, error) {
	files := slices.Clone(img.Files)
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	archive := newArchive(img.Created)
	for i, f := range files {
		if !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path {
			return nil, fmt.Errorf("image: %q: want a clean, absolute path", f.Path)
		}
		if i > 0 && files[i-1].Path == f.Path {
			return nil, fmt.Errorf("image: %s is there twice", f.Path)
		}
		name := f.Path[1:]
		archive.folders(path.Dir(name))
		if f.Link != "" {
			archive.link(name, f.Link)
			continue
		}
		archive.file(name, f.Mode, f.Content)
	}
	return archive.close()
}

// archive is a tar file in the making. Its first error is kept.
type archive struct {
	buffer bytes.Buffer
	tar    *tar.Writer
	time   time.Time
	made   map[string]bool
	err    error
}

func newArchive(t time.Time) *archive {
	a := &archive{time: t, made: map[string]bool{".": true}}
	a.tar = tar.NewWriter(&a.buffer)
	return a
}

func (a *archive) header(h *tar.Header) {
	h.ModTime, h.Format = a.time, tar.FormatPAX
	if a.time.IsZero() {
		h.ModTime = time.Unix(0, 0)
	}
	if err := a.tar.WriteHeader(h); a.err == nil {
		a.err = err
	}
}

func (a *archive) folders(name string) {
	if a.made[name] {
		return
	}
	a.folders(path.Dir(name))
	a.made[name] = true
	a.header(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755})
}

func (a *archive) file(name string, mode fs.FileMode, content []byte) {
	a.header(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(mode.Perm()), Size: int64(len(content))})
	if _, err := a.tar.Write(content); a.err == nil {
		a.err = err
	}
}

func (a *archive) link(name, target string) {
	a.header(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777})
}

func (a *archive) close() ([]byte, error) {
	if err := a.tar.Close(); a.err == nil {
		a.err = err
	}
	return a.buffer.Bytes(), a.err
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func encode(v any) []byte {
	out, err := json.Marshal(v)
	if err != nil {
		panic(err) // of maps, slices and strings: it cannot
	}
	return out
}
