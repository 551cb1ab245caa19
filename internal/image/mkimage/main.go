// Command mkimage writes the agent's image as a tar file (OCI image layout) from a
// binary and this machine's C library, without a daemon or a registry.
//
//	mkimage -o bin/image.tar -name ghcr.io/gpu-labeller/gpu-labeller:v0.1.0 -version v0.1.0 bin/gpu-labeller
package main

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/gpu-labeller/gpu-labeller/internal/image"
)

func main() {
	out := flag.String("o", "image.tar", "the tar `file`")
	name := flag.String("name", "ghcr.io/gpu-labeller/gpu-labeller:latest", "`name` of the image, with its tag")
	version := flag.String("version", "devel", "version in the image's labels")
	revision := flag.String("revision", "", "commit in the image's labels")
	sbom := flag.String("sbom", "", "a list of what the binary is made of, put into the image (CycloneDX JSON `file`)")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: mkimage [flags] BINARY")
		os.Exit(2)
	}
	if err := write(*out, *name, flag.Arg(0), *version, *revision, *sbom); err != nil {
		fmt.Fprintln(os.Stderr, "mkimage:", err)
		os.Exit(1)
	}
}

func write(out, name, binary, version, revision, sbom string) error {
	created, err := sourceTime()
	if err != nil {
		return err
	}
	img, err := image.Agent(name, binary, version, revision, created)
	if err != nil {
		return err
	}
	if sbom != "" {
		file, err := image.FromDisk(sbom, "/usr/share/doc/gpu-labeller/sbom.cdx.json", 0o644)
		if err != nil {
			return err
		}
		img.Files = append(img.Files, file)
	}
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	if _, err := img.WriteTo(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// sourceTime is SOURCE_DATE_EPOCH, which makes images reproducible, or the Unix epoch.
func sourceTime() (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		return time.Unix(0, 0), nil
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	return time.Unix(seconds, 0), nil
}
