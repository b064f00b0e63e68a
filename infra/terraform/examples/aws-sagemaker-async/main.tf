# A model streamed from S3, served asynchronously on one L4 that sleeps when nobody asks.
terraform {
  required_version = ">= 1.7"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 5.100"
    }
  }
}

variable "image" {
  type        = string
  description = "Image in ECR, built with zse build-image --model url."
}

variable "model_url" {
  type        = string
  description = "s3:// address of the .zse file."
}

provider "aws" {
  region = "us-east-1"
}

resource "aws_s3_bucket" "answers" {
  bucket_prefix = "llm-answers-"
}

module "zse" {
  source = "../../modules/aws-sagemaker-async"

  name          = "llm"
  image         = var.image
  model_url     = var.model_url
  gpu_type      = "ml.g6.xlarge"
  output_bucket = aws_s3_bucket.answers.id
}

output "url" {
  description = "Address that takes asynchronous invocations."
  value       = module.zse.url
}

output "bucket" {
  description = "Bucket for questions and answers."
  value       = aws_s3_bucket.answers.id
}
